"""The judgement of writes by others, on a matrix in factors."""

from tests.layers.dense_problems import PARTS, WIDTH, Problem, matrix_of, plain_matrix
from zloss.layers.matrix import Integrity, Writes


class TestIntegrity:
    """What the layer makes of writes of others."""

    def test_without_a_write_nothing_is_said(self) -> None:
        matrix = plain_matrix()
        integrity = Integrity(matrix)
        assert integrity.is_unproven
        assert not integrity.changed(matrix)
        assert integrity.judge(matrix) is Writes.NONE
        assert [integrity.is_unproven] == [False]
        assert integrity.version == 0

    def test_a_write_through_data_is_seen_at_the_first_look_only(self) -> None:
        for matrix, verdict in (
            (plain_matrix(), Writes.ROWS),  # as by an initialiser
            (matrix_of(Problem(3, WIDTH)), Writes.MISFIT),
        ):
            integrity = Integrity(matrix)
            matrix.rows.tensor.data.mul_(2)
            assert not integrity.changed(matrix)
            assert integrity.judge(matrix) is verdict
        matrix = plain_matrix()
        integrity = Integrity(matrix)
        integrity.judge(matrix)
        matrix.rows.tensor.data.mul_(2)
        assert integrity.judge(matrix) is Writes.NONE

    def test_all_parts_that_fit_are_accepted(self) -> None:
        matrix = plain_matrix()
        integrity = Integrity(matrix)
        other = matrix_of(Problem(3, WIDTH, seed=1))
        matrix.set_(other.factors)
        matrix.rows.tensor.copy_(other.rows.tensor)
        assert integrity.changed(matrix)
        assert integrity.judge(matrix) is Writes.ALL
        assert not integrity.changed(matrix)
        assert integrity.judge(matrix) is Writes.NONE
        assert integrity.version == 0

    def test_rows_alone_are_a_new_matrix_only_while_they_are_plain(self) -> None:
        matrix = plain_matrix()
        integrity = Integrity(matrix)
        matrix.rows.tensor.mul_(2)
        assert integrity.judge(matrix) is Writes.ROWS
        factored = matrix_of(Problem(3, WIDTH))
        integrity = Integrity(factored)
        factored.rows.tensor.mul_(2)
        assert integrity.judge(factored) is Writes.MISFIT
        assert integrity.is_unproven
        assert integrity.judge(factored) is Writes.MISFIT

    def test_one_factor_alone_does_not_fit(self) -> None:
        for part in PARTS:
            matrix = plain_matrix()
            integrity = Integrity(matrix)
            getattr(matrix.factors, part).mul_(1)
            assert integrity.judge(matrix) is Writes.MISFIT

    def test_rows_of_a_copy_may_be_an_average(self) -> None:
        matrix = plain_matrix()
        integrity = Integrity(matrix)
        integrity.judge(matrix)
        integrity.reseal(matrix, as_copy=True)
        assert integrity.is_unproven
        matrix.rows.tensor.mul_(2)
        assert integrity.judge(matrix) is Writes.MISFIT
        integrity.accept(matrix, are_own=False)
        matrix.rows.tensor.mul_(2)
        assert integrity.judge(matrix) is Writes.MISFIT
        integrity.accept(matrix)
        assert integrity.version == 2
        matrix.rows.tensor.mul_(2)
        assert integrity.judge(matrix) is Writes.ROWS

    def test_tensors_that_have_moved_are_resealed(self) -> None:
        matrix = plain_matrix()
        integrity = Integrity(matrix)
        integrity.judge(matrix)
        matrix.rows.tensor.mul_(1)
        assert integrity.changed(matrix)
        integrity.reseal(matrix)
        assert not integrity.changed(matrix)
        assert not integrity.is_unproven
        assert integrity.version == 0
        integrity.advance()
        assert integrity.version == 1
