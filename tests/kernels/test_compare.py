"""Tests of kernels.bench.compare: its measurements and verdicts, the detection of wrong kernels, and the
parsing of ncu's output."""

import json
import math
import runpy
import sys
from dataclasses import replace

import pytest
import torch

from kernels.bench import compare, counters
from kernels.cases.table import CASES, TOLERANCES
from sim import LaunchError

EXACT = [name for name, case in CASES.items() if case.tolerance == "exact"]


def rows_of(case):
    return [row for size in case.sizes for row in compare.compared(case, size)]


@pytest.mark.parametrize(
    "name", ["horner", "transpose_padded", pytest.param("flash_forward", marks=pytest.mark.nightly)]
)
def test_right_kernels_pass(name):
    rows = rows_of(CASES[name])
    assert {row.verdict for row in rows if row.got != "native"} == {"PASS"} and "FAIL" not in {
        row.verdict for row in rows
    }
    assert {("fibers", "float64"), ("threads", "fibers")} <= {(row.got, row.wanted) for row in rows}
    assert all(row.max_error == 0 for row in rows if not row.refused) == (name in EXACT)


def test_a_wrong_kernel_fails_beside_the_reference_and_the_stage_before():
    wrong = replace(CASES["transpose_padded"], call=lambda a, run=None: (torch.zeros(a.shape[::-1]),))
    failed = {(row.got, row.wanted) for row in rows_of(wrong) if row.verdict == "FAIL"}
    assert (
        failed >= {("fibers", "float64"), ("fibers", "stage before")}
        and ("stage before", "float64") not in failed
    )


def test_a_finding_fails_even_if_all_values_are_right():
    row = next(iter(rows_of(CASES["copy"])))
    assert row.verdict == "PASS" and replace(row, findings=1).verdict == "FAIL"


def test_an_engine_that_breaks_fails_its_rows_and_not_the_table(monkeypatch):
    def broken(case, given, engine):
        raise OSError("no room")

    monkeypatch.setattr(compare, "by_simulator", broken)
    rows = rows_of(CASES["transpose_tiled"])
    verdicts = {row.got: row.verdict for row in rows if row.wanted == "float64"}
    assert verdicts["stage before"] == "PASS" and verdicts["fibers"] == "FAIL"
    assert rows[1].error == "fibers: OSError: no room" and "FAIL fibers: OSError" in "\n".join(
        compare.table(rows)
    )


def test_what_the_native_engine_says_it_cannot_run_is_no_failure_and_anything_else_is():
    assert compare.refused({"native": LaunchError("no compiled form")}) and not compare.refused(
        {"native": TypeError()}
    )
    assert not compare.refused({}) and not compare.refused({"fibers": LaunchError(), "native": LaunchError()})
    row = next(iter(rows_of(CASES["copy"])))
    assert replace(row, max_error=math.nan, refused=True).verdict == "NOT RUN"


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 2e-5])
def test_nothing_but_a_small_error_passes(wrong):
    row = next(iter(rows_of(CASES["copy"])))
    assert replace(row, max_error=wrong, tolerance=1e-5).verdict == "FAIL"


def test_distances():
    one = torch.tensor([1.0, 2.0, 0.0])
    wanted = torch.tensor([1 + 2**-23, 2.0, 0.5], dtype=torch.float64)
    assert compare.distances((one,), (wanted,)) == (0.5, pytest.approx(0.5 / 3), 2.0**23)
    assert compare.distances((one[:2],), (wanted[:2],)) == (2**-23, 2**-24, 1.0)
    assert math.isnan(compare.distances((torch.tensor([1.0, math.nan]),), (torch.ones(2),))[0])
    assert compare.distances((torch.tensor([3]),), (torch.tensor([5]),)) == (2, 2, 2)
    with pytest.raises(ValueError, match="shape"):
        compare.distances((one,), (wanted[:2],))


def test_every_tolerance_is_used_and_has_a_reason():
    assert {case.tolerance for case in CASES.values()} == set(TOLERANCES)
    assert all(why for _, why in TOLERANCES.values())


def test_the_command(monkeypatch, capsys):
    """Run the module as `python -m` does, but in this process, which has imported PyTorch and Numba."""
    monkeypatch.setattr(sys, "argv", ["kernels.bench.compare", "copy", "--json"])
    monkeypatch.delitem(sys.modules, "kernels.bench.compare")
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("kernels.bench.compare", run_name="__main__")
    found = json.loads(capsys.readouterr().out)
    assert (
        ended.value.code == 0
        and {row["case"] for row in found["rows"]} == {"copy"}
        and found["date"]
        and found["versions"]["numpy"]
    )


def test_a_kernel_that_there_is_not(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["kernels.bench.compare", "cop"])
    with pytest.raises(SystemExit) as ended:
        compare.arguments()
    assert ended.value.code == 2 and "there is no kernel cop; there are " in capsys.readouterr().err


# Counters ---------------------------------------------------------------------------------------------------


def test_the_simulator_predicts_what_the_lesson_says():
    """Compare the simulator's counts with the lesson's numbers.

    A warp that copies needs 4 sectors to read and 4 to write. With stride 4 it reads 16, and a matrix column
    takes 32. A column of a shared tile takes 32 wavefronts, or 1 if the tile is padded.
    """
    found = {
        name: counters.predicted(CASES[name])
        for name in ("copy", "strided_copy", "transpose_naive", "transpose_tiled", "transpose_padded")
    }
    each = {
        (name, counter): found[name][counter] / found[name][f"{counter.rpartition(' ')[0]} requests"]
        for name, counter in [
            ("copy", "global load sectors"),
            ("copy", "global store sectors"),
            ("strided_copy", "global load sectors"),
            ("transpose_naive", "global load sectors"),
            ("transpose_naive", "global store sectors"),
            ("transpose_tiled", "shared load turns"),
            ("transpose_padded", "shared load turns"),
        ]
    }
    assert list(each.values()) == [4, 4, 16, 4, 32, 32, 1]
    assert (
        found["transpose_tiled"]["shared load conflicts"]
        == 31 * found["transpose_tiled"]["shared load requests"]
    )
    assert found["transpose_padded"]["shared load bytes"] == 128 * 96 * 4


def test_a_matrix_takes_a_turn_if_its_rows_lie_in_all_banks():
    """Count the wavefronts of an instruction that loads four matrices: four, or 32 if rows are 128 bytes
    apart."""
    counts = [counters.predicted(CASES[name]) for name in ("matrices", "matrices_conflict")]
    turns = [count["shared load turns"] / count["shared load requests"] for count in counts]
    assert turns == [4, 32] and counts[0]["shared load conflicts"] == 0


def test_reading_what_ncu_prints():
    metrics = [metric for metrics in counters.METRICS.values() for metric in metrics]
    lines = [
        f'"{launch}","1","copy","{metric}","inst","{launch + 1},{100 + i}"'
        for launch in (0, 1)
        for i, metric in enumerate(metrics)
    ]
    output = "\n".join(
        [
            "==PROF== Connected",
            '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"',
            *lines,
        ]
    )
    first, second = counters.launches_of(output)
    assert list(first) == list(counters.METRICS)
    # This metric is a single counter; shared loads and ldmatrix have two each.
    assert first["global load sectors"] == 1101
    assert first["shared load requests"] == sum(
        1100 + metrics.index(metric) for metric in counters.METRICS["shared load requests"]
    )
    assert second["global load requests"] == 2100


def test_a_difference_without_an_explanation_fails():
    assert counters.Count("copy", "global load sectors", 4, 4, "").verdict == "equal"
    assert counters.Count("copy", "global load sectors", 4, 5, "").verdict == "DIFFERENT"
    assert counters.Count("copy", "global load sectors", 4, 5, "because").verdict == "explained"


def test_an_explanation_explains_one_number_only():
    (case, counter), (number, why) = next(iter(counters.EXPLAINED.items()))
    assert counters.compared_count(case, counter, number + 1, number) == counters.Count(
        case, counter, number + 1, number, why
    )
    assert counters.compared_count(case, counter, number + 1, number + 2).verdict == "DIFFERENT"
    assert counters.compared_count(case, counter, number, number) == counters.Count(
        case, counter, number, number, ""
    )


RECORDED = sorted(compare.DATA.glob("compare-*.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_what_was_recorded_on_a_gpu_is_of_these_kernels(path):
    recorded = json.loads(path.read_text(encoding="utf-8"))
    assert recorded["gpu"] and recorded["date"] and all(recorded["versions"].values())
    assert {row["verdict"] for row in recorded["rows"]} == {"PASS"}
    assert {row["case"] for row in recorded["rows"] if row["got"] == "GPU"} == set(CASES)
    fresh = {case.name: counters.predicted(case) for case in counters.counted_cases()}
    for count in recorded["counters"]:
        verdict = count.pop("verdict")
        again = counters.compared_count(
            count["case"], count["counter"], fresh[count["case"]][count["counter"]], count["measured"]
        )
        assert again == counters.Count(**count) and again.verdict == verdict != "DIFFERENT"
    assert len(recorded["counters"]) == len(fresh) * len(counters.METRICS)
