"""Tests of the documentation: the link check finds broken links, and every API page exists."""

from course import docs


def test_a_dead_link_is_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">x</a><a href="b.html#gone">y</a><a href="c.html">z</a>'
    )
    (tmp_path / "b.html").write_text(
        '<h1 id="there">b</h1><a href="https://example.org">out</a><a href="#there">up</a>'
    )
    assert docs.dead_links(tmp_path) == ["a.html: b.html#gone", "a.html: c.html"]


def test_the_api_has_what_sim_exports_and_no_dead_link(tmp_path):
    docs.write_api(tmp_path)
    page = (tmp_path / "sim.html").read_text(encoding="utf-8")
    assert all(f'id="{name}"' in page for name in ("simulate", "Report", "KernelBug", "empty", "DeviceSpec"))
    assert 'id="conv_attention"' in (tmp_path / "kernels.html").read_text(encoding="utf-8")
    assert not (tmp_path / "sim" / "native.html").exists()
    assert docs.dead_links(tmp_path) == []
