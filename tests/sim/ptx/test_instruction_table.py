"""Test that the table of PTX instructions (sim/PTX.md) is current."""

from ptx.instruction_table import PAGE, table


def test_the_table_of_instructions_is_current():
    assert PAGE.read_text(encoding="utf-8") == table(), "run python tests/sim/ptx/instruction_table.py"
