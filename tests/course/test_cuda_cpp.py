"""Tests of CUDA C++ in a string: compilation, stubs, a missing compiler, and PTX side by side."""

import re
from pathlib import Path

import numpy as np
import pytest

from course import cuda_cpp
from course.cuda_cpp import ptx_of, without_comments, without_marks
from course.ptx import NoCompiler, load_recordings
from course.side_by_side import SideBySide, count, marked
from sim import LaunchError, simulate

ADDS = """
#include "one.cuh"

extern "C" __global__ void adds(const float* x, float* y) {
    # BEGIN SOLUTION 22.9
    y[threadIdx.x] = x[threadIdx.x] + one();
    # END SOLUTION
}
"""
ONE = "__device__ float one() { return 1.0f; }"
ROOT = Path(__file__).parents[2]
needs_nvrtc = pytest.mark.skipif(not cuda_cpp.have_nvrtc(), reason="NVRTC is not here")


@needs_nvrtc
def test_a_text_with_a_header_runs_and_its_lines_are_those_without_the_marks():
    kernel = cuda_cpp.cuda_cpp(ADDS, "adds.cu", one=ONE)["adds"]
    y = np.zeros(32, np.float32)
    simulate(kernel)[1, 32](np.arange(32, dtype=np.float32), y)
    assert (y == np.arange(32) + 1).all()
    report = simulate(kernel, on_finding="report")[1, 32](np.zeros(31, np.float32), y)
    assert "adds.cu line 4  y[threadIdx.x] = x[threadIdx.x] + one();" in report.findings[0].message


@needs_nvrtc
def test_the_compilers_message_names_no_folder_of_this_machine():
    with pytest.raises(LaunchError, match=r"\none\.cuh\(1\): error"):
        cuda_cpp.cuda_cpp(ADDS, "adds.cu", one=ONE.replace("1.0f", "="))


def test_a_stub_is_a_stub():
    with pytest.raises(NotImplementedError, match=r"^exercise 22\.9$"):
        without_marks('void f() {\n    raise NotImplementedError("exercise 22.9")\n}')


def test_comments_and_spaces_change_nothing_but_lines_stay():
    assert without_comments("a = b+1;  // more\n\n  c  =  d;") == without_comments("a=b + 1;\n\nc = d;  ")
    assert without_comments("a = b;\nc = d;") != without_comments("a = b; c = d;")


def test_without_the_compiler_the_solutions_text_stands_in(monkeypatch, capsys):
    monkeypatch.setattr(cuda_cpp, "have_nvrtc", lambda: False)
    known = next(
        found for what, found in load_recordings().items() if what.startswith("CUDA C++ neighbours.cu,")
    )
    assert ptx_of(known["source"] + "// a comment\n", "neighbours.cu") == known["ptx"]
    assert capsys.readouterr().out == ""
    assert "neighbour_sums" in cuda_cpp.cuda_cpp("another text", "neighbours.cu").names
    assert "the solution's" in capsys.readouterr().out
    with pytest.raises(NoCompiler):
        cuda_cpp.cuda_cpp("another text", "nobody_knows.cu")


PTX = """
.visible .entry f(
	.param .u64 f_param_0
)
{
	.reg .b32 %r<2>;
	.loc	1 7 0
	ld.param.u64 	%rd1, [f_param_0];
	.loc	1 9 5
	@%p1 bra 	$L__BB0_2;
	st.global.f32 	[%rd1], %f1;
$L__BB0_2:
	ret;

}
"""


def test_the_instructions_of_one_line_are_marked():
    assert [*marked(PTX, {9})] == [
        ("ld.param.u64 %rd1, [param 0]", False),
        ("@%p1 bra $L__BB0_2", True),
        ("st.global.f32 [%rd1], %f1", True),
        ("$L__BB0_2:", False),
        ("ret", False),
    ]
    assert (count(PTX), count(PTX, "bra"), count(PTX, "st.global")) == (4, 1, 1)
    shown = SideBySide("both", {"A": [*marked(PTX, {9})], "B": []})
    assert str(shown).splitlines()[1].startswith("A: 4 instructions, 2 marked")
    assert shown._repr_html_().count("▶") == 2


def test_without_nvcc_a_program_shows_its_recorded_output_and_a_changed_one_says_why_not(monkeypatch):
    monkeypatch.setenv("COURSE_NO_COMPILER", "1")
    text = (ROOT / "solutions" / "22b_cuda_programs.py").read_text(encoding="utf-8")
    program = re.search(r'PROGRAM = """(.*?)"""', text, re.DOTALL)[1]
    output = cuda_cpp.run_program(program, "program.cu")
    assert "race-shared: tile[31]" in output and "copy-out-of-bounds: cudaMemcpy" in output
    changed = cuda_cpp.run_program(program.replace("128", "n"), "program.cu")
    assert changed == "NOTHING WAS RUN. nvcc is not here"
