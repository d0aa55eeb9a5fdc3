"""Tests of packed arguments and of the disk cache of machine code, with a driver that records its calls."""

import ctypes
import itertools
import re
import struct
import threading
from types import SimpleNamespace

import pytest
import torch
from numba import cuda
from numba.cuda import dispatcher, types
from numpy import float32, int32
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import kernels
import kernels.reference
from kernels.common import code_cache, driver, specialised
from kernels.common import launch as launching
from kernels.common.code_cache import MachineCode
from kernels.common.extent import Extent
from kernels.common.fingerprint import UnknownObjectError, fingerprint
from kernels.common.launch import launch, on_gpu
from kernels.conv import backward

FACTOR = 3


@cuda.jit(device=True)
def scaled(x):
    return x * FACTOR


@cuda.jit
def scale(x, out, factor, flag, extent, count):
    """Store factor · 3 · x in out (m, n)."""
    i, j = cuda.blockIdx.x, cuda.threadIdx.x
    if flag and i < count:
        out[i, j] = scaled(x[i, j]) * factor + extent[0]


def arguments(shape=(4, 9)):
    x = torch.arange(36.0).view(4, 9)[: shape[0], : shape[1]]
    return x, torch.zeros(shape), float32(2), True, Extent(1, 2, 3), int32(4)


# Packed arguments -------------------------------------------------------------------------------------------


def parameters(ptx):
    """Return the bytes of each parameter of the kernel in PTX."""
    names = re.search(r"\.entry \S+\((.*?)\)", ptx, re.S)[1]
    return [int(bits) // 8 for bits in re.findall(r"\.param \.[a-z](\d+)", names)]


@pytest.mark.parametrize("shape", [(4, 9), (2, 5)], ids=["contiguous", "strided"])
def test_packed_arguments_are_laid_out_like_the_parameters_of_the_kernel(monkeypatch, shape):
    # a device function asks for the GPU's compute capability
    device = SimpleNamespace(compute_capability=(9, 0))
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: device)
    given = arguments(shape)
    signature = types.void(*map(specialised.type_of, given))
    ptx, _ = cuda.compile(scale.py_func, signature, device=False, abi="numba", output="ptx", cc=(9, 0))
    letters = "".join(specialised.fields(argument)[0] for argument in given)
    assert [struct.calcsize(letter) for letter in letters] == parameters(ptx)


def test_packed_arguments_hold_sizes_strides_and_numbers():
    data, places = specialised.packed(arguments((2, 5)))
    words = memoryview(data[: len(data) // 8 * 8]).cast("q")
    assert places == (4, 13)
    assert [*words[:9]] == [0, 0, 10, 4, 0, 2, 5, 36, 4]
    assert [*words[9:18]] == [0, 0, 10, 4, 0, 2, 5, 20, 4]
    assert struct.unpack_from("f?qqqi", data, 18 * 8) == (2.0, True, 1, 2, 3, 4)


def test_an_address_after_a_small_number_is_aligned():
    data, places = specialised.packed([True, float32(1), torch.zeros(3), True, torch.zeros(2)])
    assert places == (5, 13) and len(data) == 16 * 8


def test_an_unknown_argument_is_left_to_numba():
    assert not specialised.packable("text") and not specialised.packable((1, "text"))
    assert all(map(specialised.packable, arguments()))


# A driver that records --------------------------------------------------------------------------------------


COPIED = "buffer", "call", "configuration"


class Recorder:
    """A driver that records the machine code that it loads, the launches with their arguments, and the
    numbers of launches of its graphs."""

    def __init__(self):
        self.loaded, self.launched, self.graphs = [], [], []

    def load_kernel(self, name, cubin):
        if cubin == b"refused":
            raise driver.DriverError("not for this GPU")
        self.loaded.append((name, cubin))
        return len(self.loaded)

    def launch(self, launches, stream, device):
        for packed in launches:
            configuration, kernel = packed.configuration, packed.call[1]
            grid, block = (
                tuple(getattr(configuration, f"{size}{axis}") for axis in "xyz") for size in ("grid", "block")
            )
            self.launched.append((kernel, grid, block, stream, packed.buffer.raw))

    def graph(self, launches, device):
        """Return a graph of launches, with copies of their arguments."""
        self.graphs.append(len(launches))
        copies = []

        def update():
            copies[:] = [SimpleNamespace(**{name: getattr(x, name) for name in COPIED}) for x in launches]
            for each in copies:
                each.buffer = SimpleNamespace(raw=each.buffer.raw)

        update()
        return SimpleNamespace(update=update, launch=lambda stream: self.launch(copies, stream, device))


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """Replace the driver with a Recorder, Numba's compiler with a counter, and the cache folder with a new
    folder."""
    recorder = Recorder()
    recorder.compiled = []
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(code_cache, "folder", code_cache.folder.__wrapped__)
    for name in ("plans", "functions"):
        monkeypatch.setattr(specialised, name, {})
    monkeypatch.setattr(specialised, "graph_numbers", itertools.count())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(driver, "version", lambda: 13000)
    monkeypatch.setattr(driver, "use_device", lambda device: None)
    monkeypatch.setattr(driver, "load_kernel", recorder.load_kernel)
    monkeypatch.setattr(driver, "launch", recorder.launch)
    monkeypatch.setattr(driver, "LaunchGraph", recorder.graph)

    def compiled(kernel, given):
        recorder.compiled.append(given)
        library = SimpleNamespace(
            _setup_functions=[], get_cubin=lambda: SimpleNamespace(code=b"machine code")
        )
        names = ("cooperative", "debug", "extensions", "launch_config_sensitive", "shared_memory_carveout")
        return SimpleNamespace(entry_name="scale_1", library=library, **dict.fromkeys(names))

    monkeypatch.setattr(type(scale), "compile", compiled)
    return recorder


def run(kernel=scale, given=None, grid=(4,), block=9):
    """Launch with the plan that `on_gpu` would use."""
    given = given or arguments()
    addresses = [x.data_ptr() for x in given if isinstance(x, torch.Tensor)]
    specialised.plan_for(len(specialised.plans), kernel, grid, block, 0, given).steps.launch(addresses, 77)
    return addresses


def forget(monkeypatch):
    """Clear the caches in memory, as in a second process."""
    for name in ("plans", "functions"):
        monkeypatch.setattr(specialised, name, {})


def test_a_launch_has_the_addresses_in_their_places(gpu):
    addresses = run()
    (function, grid, block, stream, data) = gpu.launched[0]
    assert (function, grid, block, stream) == (1, (4, 1, 1), (9, 1, 1), 77)
    words = memoryview(data).cast("Q")
    assert [words[4], words[13]] == addresses


def test_buffers_are_used_again(gpu):
    given = arguments()
    plan = specialised.plan_for(0, scale, (4,), 9, 0, given)
    for start in (100, 200):
        plan.steps.launch([start, start + 1], 0)
    words = [memoryview(data).cast("Q") for *_, data in gpu.launched]
    assert [(each[4], each[13]) for each in words] == [(100, 101), (200, 201)]
    assert len(plan.steps.free[0]) == 1 and not gpu.graphs


@pytest.mark.parametrize("captured", [False, True])
def test_several_launches_become_a_graph_unless_they_are_captured(gpu, monkeypatch, captured):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captured)
    plan = specialised.plan_for(0, scale, (4,), 9, 0, arguments())
    steps = specialised.Steps([(plan, (0, 1)), (plan, (1, 2))])
    for start, stream in ((100, 7), (100, 7), (200, 7), (300, 8)):
        steps.launch([start, start + 1, start + 2], stream)
    words = [(stream, memoryview(data).cast("Q")) for *_, stream, data in gpu.launched]
    assert [(stream, each[4], each[13]) for stream, each in words] == [
        (stream, start + x, start + x + 1)
        for start, stream in ((100, 7), (100, 7), (200, 7), (300, 8))
        for x in range(2)
    ]
    assert gpu.graphs == ([] if captured else [2, 2])  # one for each stream


def test_the_number_of_graphs_is_limited(gpu, monkeypatch):
    monkeypatch.setattr(specialised, "MOST_GRAPHS", 2)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    plan = specialised.plan_for(0, scale, (4,), 9, 0, arguments())
    for _ in range(3):
        specialised.Steps([(plan, (0, 1)), (plan, (1, 2))]).launch([1, 2, 3], 7)
    assert len(gpu.graphs) == 2 and len(gpu.launched) == 6


def test_a_graph_is_updated_after_a_captured_launch(gpu, monkeypatch):
    plan = specialised.plan_for(0, scale, (4,), 9, 0, arguments())
    steps = specialised.Steps([(plan, (0, 1)), (plan, (1, 2))])
    for start, captured in ((100, False), (200, True), (200, False)):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda captured=captured: captured)
        steps.launch([start, start + 1, start + 2], 0)
    words = [memoryview(data).cast("Q") for *_, data in gpu.launched]
    assert [each[4] for each in words] == [100, 101, 200, 201, 200, 201]


def test_a_second_process_loads_instead_of_compiling(gpu, monkeypatch):
    run()
    forget(monkeypatch)
    run()
    assert len(gpu.compiled) == 1
    assert gpu.loaded == [("scale_1", b"machine code")] * 2


def test_in_one_process_a_kernel_is_loaded_once_for_all_shapes(gpu):
    run()
    run(given=(torch.zeros(2, 3), torch.zeros(2, 3), *arguments()[2:]))
    assert len(gpu.compiled) == len(gpu.loaded) == 1
    run(given=arguments((2, 5)))  # not contiguous: another type
    assert len(gpu.compiled) == len(gpu.loaded) == 2


class Allocations(TorchDispatchMode):
    """Record the storages of all tensors that operations return. The tensors stay alive."""

    def __init__(self):
        super().__init__()
        self.sizes, self.alive = {}, []  # sizes: {address: bytes}

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        found = function(*arguments, **named or {})
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                self.sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
                self.alive.append(tensor)
        return found

    def names(self, launched, known):
        """Return the 64-bit words of each launch's arguments, with (number, offset) in place of an address.

        launched: the arguments of each launch as bytes.
        known: the tensors with the numbers 0, 1, ... The other storages are numbered as they appear.
        """
        numbers = {tensor.untyped_storage().data_ptr(): number for number, tensor in enumerate(known)}

        def named(word):
            for first, size in self.sizes.items():
                if first <= word < first + size:
                    return numbers.setdefault(first, len(numbers)), word - first
            return word

        return [[named(word) for word in memoryview(data).cast("Q")] for data in launched]


@pytest.mark.parametrize("banded, launches", [(False, 4), (True, 5)])
def test_a_repeated_backward_pass_launches_the_same_with_other_tensors(gpu, monkeypatch, banded, launches):
    """Compare the launches of two calls, with names in place of addresses."""
    monkeypatch.setitem(launching.RUNNERS, "cpu", on_gpu)
    monkeypatch.setattr(backward, "supports", lambda *_: banded)
    monkeypatch.setattr(launching, "remembered", repeated := {})
    monkeypatch.setattr(launching, "raw_stream", lambda device: 7)
    monkeypatch.setattr(launching, "current_device", lambda: -1)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    calls = []
    for _ in range(2):
        gpu.launched.clear()
        with Allocations() as allocations:
            q, k, v, o, d_o = (torch.zeros(1, 2, 40, 64, dtype=torch.float16) for _ in range(5))
            given = q, k, v, torch.zeros(2, 3, 3), o, torch.zeros(1, 2, 40), d_o
            found = backward.backward(*given, True, float32(1), (True,) * 4, False)
        assert [x.shape for x in found] == [x.shape for x in given[:4]]
        names = allocations.names([data for *_, data in gpu.launched], (*given, *found))
        calls.append([(*rest, each) for (*rest, _), each in zip(gpu.launched, names)])
    assert len(repeated) == 1 and len(calls[0]) == launches and calls[0] == calls[1]
    assert gpu.graphs == [launches]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1] + b"X"),
        lambda path: path.write_bytes(path.read_bytes()[:40]),
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
    ],
    ids=["changed", "cut", "empty", "removed"],
)
def test_a_damaged_entry_counts_as_absent_and_is_replaced(gpu, monkeypatch, damage, tmp_path):
    run()
    (path,) = (tmp_path / code_cache.FOLDER).iterdir()
    damage(path)
    forget(monkeypatch)
    run()
    assert len(gpu.compiled) == 2
    forget(monkeypatch)
    run()
    assert len(gpu.compiled) == 2 and gpu.loaded == [("scale_1", b"machine code")] * 3


def test_machine_code_that_the_driver_refuses_is_compiled_again(gpu, monkeypatch, tmp_path):
    run()
    (path,) = (tmp_path / code_cache.FOLDER).iterdir()
    code_cache.save(path.stem, MachineCode("scale_1", b"refused"))
    forget(monkeypatch)
    run()
    assert len(gpu.compiled) == 2 and gpu.loaded[-1] == ("scale_1", b"machine code")


@pytest.mark.parametrize(
    "change",
    [dict(kernels="version"), dict(capability=(8, 0)), dict(driver=12080), dict(compilers=("another",))],
    ids=["types", "capability", "driver", "compilers"],
)
def test_every_input_of_the_compilation_is_part_of_the_key(monkeypatch, change):
    def key(types=("array",), capability=(9, 0), driver=13000, **rest):
        return code_cache.key_of(scale, types, capability, driver)

    before = key()
    monkeypatch.setattr(code_cache, "compilers", lambda: change.get("compilers", before_compilers))
    if "kernels" in change:
        change = dict(types=("scalar",))
    assert key() == before or "compilers" in change
    assert key(**change) != before


before_compilers = code_cache.compilers()


@pytest.mark.parametrize(("mode", "used"), [(0o700, True), (0o755, True), (0o777, False)])
def test_the_folder_is_private(gpu, tmp_path, mode, used):
    path = tmp_path / code_cache.FOLDER
    path.mkdir()
    path.chmod(mode)
    if used:
        assert code_cache.folder() == path and path.stat().st_mode & 0o777 == 0o700
    else:
        with pytest.warns(RuntimeWarning, match="other users can write in"):
            assert code_cache.folder() is None
            run()
        assert len(gpu.launched) == 1 and not [*path.iterdir()]


# Fingerprints -----------------------------------------------------------------------------------------------


def kernel_with(factor=1.0, body="x[0] = helper(x[0]) * factor", helper="y + 1", **options):
    """Create a kernel that calls a device function and captures a number."""
    space = {"cuda": cuda}
    exec(f"@cuda.jit(device=True)\ndef helper(y):\n    return {helper}\n", space)
    source = f"def made(factor):\n    def kernel(x):\n        {body}\n    return kernel\n"
    exec(source, space)
    return cuda.jit(**options)(space["made"](factor)) if options else cuda.jit(space["made"](factor))


def test_equal_kernels_have_equal_fingerprints():
    assert fingerprint(kernel_with()) == fingerprint(kernel_with())


@pytest.mark.parametrize(
    "change",
    [
        dict(factor=2.0),
        dict(factor=1),
        dict(body="x[0] = helper(x[0]) + factor"),
        dict(body="x[1] = helper(x[0]) * factor"),
        dict(helper="y + 2"),
        dict(max_registers=64),
        dict(fastmath=True),
    ],
    ids=str,
)
def test_each_change_of_a_kernel_changes_its_fingerprint(change):
    assert fingerprint(kernel_with(**change)) != fingerprint(kernel_with())


def test_a_global_variable_of_a_device_function_is_part_of_the_fingerprint(monkeypatch):
    before = fingerprint(scale)
    monkeypatch.setitem(globals(), "FACTOR", 4)
    assert fingerprint(scale) != before


def test_a_kernel_that_captures_an_unknown_object_is_not_cached(gpu, monkeypatch, tmp_path):
    kernel = kernel_with(factor=SimpleNamespace())
    with pytest.raises(UnknownObjectError):
        fingerprint(kernel)
    assert code_cache.key_of(kernel, (), (9, 0), 13000) is None
    run(kernel)
    assert gpu.launched and not [*(tmp_path / code_cache.FOLDER).iterdir()]


def test_a_kernel_of_every_package_can_be_cached():
    from kernels.conv.banded_products import key_gradient_kernel, query_gradient_kernel
    from kernels.conv.banded_scores import score_gradient_kernel
    from kernels.conv.banded_wgmma import wgmma_score_gradient_kernel
    from kernels.conv.hopper_forward import block_for, conv_hopper_kernel
    from kernels.conv.tensor_backward import gradient_kernel
    from kernels.flash.hopper_blocks import BLOCKS
    from kernels.flash.hopper_forward import flash_hopper_kernel
    from kernels.latent.tensor_forward import latent_tensor_kernel

    prints = {
        fingerprint(kernel)
        for kernel in (
            gradient_kernel(64, "bfloat16", 7, 7, True),
            gradient_kernel(64, "bfloat16", 7, 7, False),
            gradient_kernel(64, "float16", 7, 7, False),
            latent_tensor_kernel(64, "bfloat16", 4, 2, 64),
            score_gradient_kernel(64, "bfloat16", 7, 7, 4, True),
            wgmma_score_gradient_kernel(64, "bfloat16", 7, 7, True),
            query_gradient_kernel(64, "bfloat16", 128, 116),
            key_gradient_kernel(64, "bfloat16", 128, 116),
            conv_hopper_kernel(64, "bfloat16", block_for(64, 7), 7, 7, True),
            flash_hopper_kernel(64, "bfloat16", BLOCKS[64]),
        )
    }
    assert len(prints) == 10


def test_compile_for_runs_both_passes():
    called = []

    def attend(q, w, *, causal):
        called.append((q.shape, w, causal))
        return q * 2, q

    kernels.compile_for(attend, (2, 3), 0.5, device="cpu", dtype=torch.float64, backward=True, causal=False)
    assert called == [((2, 3), 0.5, False)]


# On a GPU ---------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_machine_code_from_the_disk_computes_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(code_cache, "folder", code_cache.folder.__wrapped__)
    for _ in range(2):
        forget(monkeypatch)
        x = torch.arange(36.0, device="cuda").view(4, 9)
        out = torch.zeros_like(x)
        kernel = cuda.jit(scale.py_func)  # a kernel that no earlier launch has compiled
        monkeypatch.setattr("kernels.common.launch.plans", specialised.plans)
        launch(kernel, (4,), 9, x, out, *arguments()[2:])
        assert torch.equal(out, x * 3 * 2 + 1)
        overloads = len(kernel.overloads)
    assert overloads == 0  # the second kernel came from the disk
    assert len([*(tmp_path / code_cache.FOLDER).iterdir()]) == 1


@pytest.mark.gpu
def test_the_driver_reports_the_resources_of_a_kernel():
    x = torch.randn(4, 9, device="cuda")
    on_gpu(scale, (4,), 9, x, torch.zeros_like(x), *arguments()[2:])
    found = specialised.resources(scale, 9)
    assert found["blocks"] > 1 and 0 < found["registers"] < 64 and found["shared"] == found["local"] == 0


@pytest.mark.gpu
def test_after_compile_for_a_call_compiles_nothing():
    rows, taps = (1, 2, 40, 16), (2, 3, 3)
    kernels.compile_for(kernels.conv_attention, rows, rows, rows, taps, dtype=torch.float16, backward=True)
    loaded = len(specialised.functions)
    leaves = [torch.randn(x, device="cuda").half().requires_grad_() for x in (rows, rows, rows, taps)]
    kernels.conv_attention(*leaves).sum().backward()
    assert len(specialised.functions) == loaded and all(x.grad is not None for x in leaves)


@pytest.mark.gpu
def test_relaunched_calls_compute_the_same():
    """Later calls of equal sizes skip all checks; other taps, types, scales and addresses are kept apart.

    Rounding errors reached 0.04 in one of many runs without a seed. A launch with the wrong taps or scale has
    an error of about 1.
    """
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 64, 64, device="cuda").bfloat16()
    taps = torch.randn(2, 3, 5, device="cuda") / 4
    shifted = torch.randn(2 * 64 * 64 + 1, device="cuda").bfloat16()[1:].view(1, 2, 64, 64)  # unaligned
    for _ in range(2):
        for w in (taps, taps.bfloat16(), taps[:, :2].contiguous()):
            for scale in (0.1, 0.3, -0.2):
                for x in (q, shifted):
                    wanted = kernels.reference.conv_attention(
                        *(y.double() for y in (x, k, v, w)), scale=scale
                    )
                    got = kernels.conv_attention(x, k, v, w, scale=scale)
                    assert (got - wanted).abs().max() <= 0.1


# Repeated backward passes on a GPU -------------------------------------------------------------------------


def leaves_of(seed):
    """Return q, k, v and w, which require gradients, and the gradient of the output."""
    generator = torch.Generator("cuda").manual_seed(seed)
    q, k, v, d_o = torch.randn(4, 1, 2, 64, 64, device="cuda", generator=generator).bfloat16()
    w = torch.randn(2, 5, 5, device="cuda", generator=generator).bfloat16() / 5
    return [x.requires_grad_() for x in (q, k, v, w)], d_o


def gradients_of(seed):
    leaves, d_o = leaves_of(seed)
    return torch.autograd.grad(kernels.conv_attention(*leaves), leaves, d_o)


@pytest.fixture
def wanted(monkeypatch):
    """Return the gradients for eight seeds, each from a pass that is not repeated."""
    found = []
    for seed in range(8):
        monkeypatch.setattr(launching, "remembered", {})
        found.append(gradients_of(seed))
    return found


def equal(found, wanted):
    return all(map(torch.equal, found, wanted))


@pytest.mark.gpu
def test_repeated_backward_passes_compute_the_same(wanted):
    for seed in (0, 1, 1, 2, 0, 3) * 3:
        assert equal(gradients_of(seed), wanted[seed])
    leaves, d_o = leaves_of(3)
    o = kernels.conv_attention(*leaves)
    for _ in range(3):
        assert equal(torch.autograd.grad(o, leaves, d_o, retain_graph=True), wanted[3])
    with torch.no_grad():
        leaves[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(o, leaves, d_o)


@pytest.mark.gpu
def test_repeated_backward_passes_in_two_streams_compute_the_same(wanted):
    streams, found = [torch.cuda.Stream() for _ in range(2)], []
    torch.cuda.synchronize()
    for turn in range(40):
        with torch.cuda.stream(streams[turn % 2]):
            found.append(gradients_of(turn % 8))
    torch.cuda.synchronize()
    assert all(equal(each, wanted[turn % 8]) for turn, each in enumerate(found))


@pytest.mark.gpu
@pytest.mark.parametrize("streams", ["one", "two"])
def test_repeated_backward_passes_in_two_threads_compute_the_same(wanted, streams):
    found = {}

    def work(thread, stream):
        with torch.cuda.stream(stream):
            for turn in range(40):
                found[thread, turn] = gradients_of((turn + thread) % 8)

    torch.cuda.synchronize()
    used = [torch.cuda.Stream() for _ in range(2)] if streams == "two" else [torch.cuda.current_stream()] * 2
    threads = [threading.Thread(target=work, args=given) for given in enumerate(used)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert len(found) == 80
    assert all(equal(each, wanted[(turn + thread) % 8]) for (thread, turn), each in found.items())


@pytest.mark.gpu
def test_a_repeated_backward_pass_can_be_captured(wanted):
    leaves, d_o = leaves_of(0)
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.autograd.grad(kernels.conv_attention(*leaves), leaves, d_o)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        found = torch.autograd.grad(kernels.conv_attention(*leaves), leaves, d_o)
    for seed in (1, 2):
        others, other_d_o = leaves_of(seed)
        with torch.no_grad():
            for x, y in zip((*leaves, d_o), (*others, other_d_o)):
                x.copy_(y)
        gradients_of(seed)
        graph.replay()
        assert equal(found, wanted[seed])


@pytest.mark.parametrize("early", [False, True])
def test_only_an_early_launch_has_an_attribute(early):
    packed = driver.PackedLaunch(1, bytes(8), (1, 1, 1), (32, 1, 1), early)
    configuration = packed.configuration
    assert ctypes.sizeof(driver.Attribute) == 72 and configuration.attribute_count == early
    if early:
        attribute = driver.Attribute.from_address(configuration.attributes)
        assert (attribute.number, attribute.value) == (6, 1)


@pytest.mark.gpu
def test_an_invalid_launch_is_an_error_of_the_driver():
    x = torch.randn(4, 9, device="cuda")
    with pytest.raises(driver.DriverError, match="cuLaunchKernelEx failed with error 1: invalid argument"):
        on_gpu(scale, (4,), 2000, x, torch.zeros_like(x), *arguments()[2:])
