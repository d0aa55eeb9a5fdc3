"""Tests of the doctor: its report for given facts about a machine, and the remedy for every known problem."""

import sys

import pytest

from course import doctor
from course.doctor import Facts, diagnose, report

VERSIONS = {
    "numpy": "2.4.6",
    "torch": "2.13.0",
    "numba": "0.68.1",
    "numba-cuda": "0.30.4",
    "nvidia-nvvm": "13.0.88",
}
LAPTOP = Facts(versions=VERSIONS)
WITH_GPU = Facts(versions=VERSIONS, driver=(13, 0), gpus=("GPU A",), torch_cuda=(13, 0), ptx=(13, 0))


def but(facts, **changes):
    return Facts(**{**vars(facts), **changes})


def without(package):
    return {name: version for name, version in VERSIONS.items() if name != package}


def test_a_healthy_laptop_without_a_gpu():
    assert report(LAPTOP, diagnose(LAPTOP)) == [
        "  Python      3.11.0",
        "  numpy       2.4.6",
        "  torch       2.13.0",
        "  numba       0.68.1",
        "  numba-cuda  0.30.4",
        "  GPU         no GPU: every lesson runs in the simulator",
        "",
        "Ready: every lesson runs in the simulator.",
    ]


def test_a_healthy_machine_with_a_gpu():
    lines = report(WITH_GPU, diagnose(WITH_GPU))
    assert lines[5:] == [
        "  driver      understands CUDA 13.0",
        "  GPU         GPU A",
        "",
        "Ready: every lesson runs in the simulator, and on the GPU.",
    ]


@pytest.fixture(scope="module")
def here():
    return doctor.examine()


def test_where_compiled_kernels_are_kept(here):
    assert here.compiled.rpartition(",")[0].endswith("sim-native")
    assert (
        report(but(LAPTOP, compiled="~/.cache/sim-native, 2.5 MB"), [])[6]
        == "  compiled    kernels of the native engine: ~/.cache/sim-native, 2.5 MB"
    )


# (facts, problem, remedy)
GPU_TROUBLES = {
    "numba-cuda is missing": (
        but(LAPTOP, versions=without("numba-cuda")),
        "numba-cuda is not installed: kernels cannot run on a GPU.",
        'pip install -c constraints.txt "numba-cuda[cu13]"',
    ),
    "numba-cuda is missing, older driver": (
        but(LAPTOP, versions=without("numba-cuda"), driver=(12, 4)),
        "numba-cuda is not installed: kernels cannot run on a GPU.",
        '"numba-cuda[cu12]" "cuda-bindings==12.9.10" "cuda-toolkit==12.4.*"',
    ),
    "no numba-cuda for this platform": (
        but(LAPTOP, versions=without("numba-cuda"), system="Darwin"),
        "There is no numba-cuda for macOS.",
        "none is needed in the simulator",
    ),
    "numba-cuda is broken": (
        but(LAPTOP, broken={"numba.cuda": "ImportError: no libnvvm"}),
        "numba-cuda cannot be imported: ImportError: no libnvvm",
        "-m pip uninstall numba-cuda",
    ),
    "numpy is too new for numba-cuda": (
        but(LAPTOP, versions={**VERSIONS, "numpy": "2.5.1"}, broken={"numba.cuda": "ImportError"}),
        "numpy 2.5.1 is too new for numba-cuda.",
        'pip install -c constraints.txt "numpy"',
    ),
    "the driver is too old for the PTX version": (
        but(WITH_GPU, ptx=(13, 4)),
        "The driver is too old for the PTX version: it understands CUDA 13.0, kernels are compiled for 13.4.",
        "update the NVIDIA driver, or: ",
    ),
    "torch is newer than the driver": (
        but(WITH_GPU, driver=(12, 4), ptx=(12, 4)),
        "The driver understands CUDA 12.4; this torch was built for 13.0 and sees no GPU.",
        "a torch built for CUDA 12",
    ),
    "torch has no CUDA": (
        but(WITH_GPU, torch_cuda=None),
        "There is a GPU, but this torch was built without CUDA.",
        "delete .venv, then make setup without PIP_ARGS",
    ),
}


@pytest.mark.parametrize("name", GPU_TROUBLES)
def test_what_a_gpu_lacks_has_a_remedy_and_stops_no_lesson(name):
    facts, what, remedy = GPU_TROUBLES[name]
    (trouble,) = diagnose(facts)
    assert (trouble.what, trouble.stops) == (what, False)
    assert remedy in trouble.remedy
    assert report(facts, [trouble])[-4:] == [
        f"  ! {what}",
        f"    Remedy: {trouble.remedy}",
        "",
        "Ready: every lesson runs in the simulator.",
    ]


LESSON_TROUBLES = {
    "Python is too old": (
        but(LAPTOP, python=(3, 10, 2)),
        "Python is too old.",
        "make setup PYTHON=python3.11",
    ),
    "torch is missing": (
        but(LAPTOP, broken={"torch": "ModuleNotFoundError: No module named 'torch'"}),
        "torch cannot be imported: ModuleNotFoundError: No module named 'torch'",
        'pip install -c constraints.txt "torch"',
    ),
    "the simulator is broken": (
        but(LAPTOP, broken={"simulator": "ModuleNotFoundError: No module named 'greenlet'"}),
        "The simulator cannot be imported: ModuleNotFoundError: No module named 'greenlet'",
        "make setup PIP_ARGS=--force-reinstall",
    ),
}


@pytest.mark.parametrize("name", LESSON_TROUBLES)
def test_what_a_lesson_lacks_has_a_remedy_and_stops_it(name):
    facts, what, remedy = LESSON_TROUBLES[name]
    (trouble,) = diagnose(facts)
    assert (trouble.what, trouble.stops) == (what, True)
    assert remedy in trouble.remedy
    assert report(facts, [trouble])[-1] == "No lesson can run before this is fixed."


@pytest.mark.parametrize("name", [*GPU_TROUBLES, *LESSON_TROUBLES])
def test_before_the_set_up_no_remedy_names_a_python_that_is_not_there(name):
    facts = but({**GPU_TROUBLES, **LESSON_TROUBLES}[name][0], set_up=False)
    (trouble,) = diagnose(facts)
    assert "bin/python" not in trouble.remedy and "Scripts" not in trouble.remedy
    if name in ("torch is missing", "the simulator is broken"):
        assert trouble.remedy == "make setup"


def test_whether_there_is_a_venv_is_a_fact(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    monkeypatch.setattr(doctor, "IMPORTS", {})  # Each import of PyTorch in a new process takes 3 CPU seconds.
    assert not doctor.examine().set_up
    python = doctor.venv_python(tmp_path)
    python.parent.mkdir(parents=True)
    python.touch()
    assert doctor.examine().set_up


def test_what_stops_the_lessons_comes_first():
    facts = but(LAPTOP, versions=without("numba-cuda"), broken={"torch": "ImportError"})
    assert [trouble.stops for trouble in diagnose(facts)] == [True, False]


@pytest.mark.parametrize(
    ("broken", "status"), [({}, 0), ({"numba.cuda": "ImportError"}, 0), ({"torch": "ImportError"}, 1)]
)
def test_the_exit_status_tells_only_whether_the_lessons_run(monkeypatch, broken, status):
    monkeypatch.setattr(doctor, "examine", lambda: but(LAPTOP, broken=broken))
    assert doctor.main() == status


def test_an_import_that_fails_or_crashes_is_a_fact_and_nothing_more(monkeypatch):
    tries = {"fine": "print('13.0')", "fails": "import no_such_module", "crashes": "import os; os._exit(7)"}
    monkeypatch.setattr(doctor, "IMPORTS", tries)
    said, broken = doctor.try_imports()
    assert said == {"fine": "13.0"}
    assert broken == {
        "fails": "ModuleNotFoundError: No module named 'no_such_module'",
        "crashes": "exit status 7",
    }


def test_this_machine_can_run_the_lessons(here):
    assert here.python == sys.version_info[:3]
    assert not [trouble for trouble in diagnose(here) if trouble.stops]
