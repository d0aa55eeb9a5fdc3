"""Checks of lesson 13b: dK and dV of one tile, run in `sim`."""

import numpy as np

from course.check import kernels
from course.check.backward_tiles import added, beyond, normal, replaced, tiles
from course.check.harness import exercise
from course.check.lesson13 import DESCRIPTION, HALO_ROWS, NOT_ADDED, SHIFTED, agree, launched


@exercise("13.6", "add_d_k_d_v")
def ex13_6(add_d_k_d_v, rng):
    kernels.jitted(add_d_k_d_v, "add_d_k_d_v", allowed=())

    def k_kernel(d_s_tile, p_tile, q, d_o, i0, rows, columns, right, d_k_tile, d_v_tile):
        add_d_k_d_v(d_k_tile, d_v_tile, d_s_tile, p_tile, q, d_o, i0, rows, columns, right)

    for tile in tiles(rng):
        before, q, d_o = normal(rng, 2, tile.columns + 1, 5), tile.pass_.q, tile.pass_.d_o
        outputs, mine = list(before.copy()), slice(tile.i0, tile.i0 + tile.rows)
        call = (
            f"add_d_k_d_v(..., q {q.shape}, d_o, i0={tile.i0}, rows={tile.rows}, columns={tile.columns},"
            f" right={tile.right})"
        )
        inputs = beyond(tile.d_s), beyond(tile.p), q, d_o, tile.i0, tile.rows, tile.columns, tile.right
        shared = launched(k_kernel, tile.threads, inputs, outputs, rng, call, min(tile.columns, q.shape[1]))
        wanted = tile.d_s.T @ q[mine], tile.p_owned.T @ d_o[mine]
        agree(
            "d_k_tile",
            outputs[0],
            added(before[0], wanted[0]),
            call,
            {NOT_ADDED: replaced(before[0], wanted[0])} | k_mistakes(tile, before[0]),
            K_LINE,
        )
        agree(
            "d_v_tile",
            outputs[1],
            added(before[1], wanted[1]),
            call,
            {NOT_ADDED: replaced(before[1], wanted[1])} | v_mistakes(tile, before[1]),
            V_LINE,
        )
        shared()
    return f"dK and dV: {DESCRIPTION}"


# 13.1 -------------------------------------------------------------------------------------------------------

FIRST_ROWS = "Row i of the tile is query i0 + i."
K_LINE = "d_k_tile[j, c] += Σ over the rows i of d_s_tile[i, j] · q[i0 + i, c]."
V_LINE = "d_v_tile[j, c] += Σ over the rows i of p_tile[i, right + j] · d_o[i0 + i, c]."


def k_mistakes(tile, before):
    return {FIRST_ROWS: added(before, tile.d_s.T @ tile.pass_.q[: tile.rows])}


def v_mistakes(tile, before):
    height, d_o = len(tile.p), tile.pass_.d_o
    rows = np.pad(d_o, ((0, 40), (0, 0)))[tile.i0 :]
    every, columns = tile.p[:, tile.right : tile.right + tile.columns], tile.p[: tile.rows, : tile.columns]
    return {
        HALO_ROWS: added(before, every.T @ rows[:height]),
        SHIFTED.replace("d_t_tile", "p_tile"): added(before, columns.T @ rows[: tile.rows]),
    }
