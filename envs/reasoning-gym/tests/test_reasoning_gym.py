"""Questions of the package itself, where it is installed; without it, that is said. The stand-ins need only Python."""

import _formulas
import _stand_ins
import pytest
import reasoning_gym_env

present = _stand_ins.installed("reasoning_gym")
installed = pytest.mark.skipif(not present, reason="reasoning-gym is not installed")


@pytest.mark.skipif(present, reason="reasoning-gym is installed")
def test_without_the_package_every_tool_says_so():
    with pytest.raises(RuntimeError, match="pip install reasoning-gym"):
        reasoning_gym_env.get_question()


@installed
def test_the_answer_of_every_dataset_that_knows_one_is_right():
    left_out = {"composite"}  # is made of others, and of nothing unless told which
    for name in set(reasoning_gym_env.list_datasets()) - left_out:
        reasoning_gym_env.load_question(name)
        for step in reasoning_gym_env.get_solution():
            reasoning_gym_env.submit_answer(**step["arguments"])
            assert reasoning_gym_env.score()["score"] == 1.0, name


@installed
def test_an_answer_that_is_none_scores_little_and_never_fails():
    for name in ("prime_factorization", "leg_counting", "zebra_puzzles", "codeio", "game_of_life"):
        reasoning_gym_env.load_question(name)
        assert reasoning_gym_env.score("?")["score"] < 0.1
        assert reasoning_gym_env.score()["answered"] is False


def test_a_formula_has_the_solutions_that_it_has():
    clauses = [[1, 2], [-1, -2], [3, -2]]
    found = {tuple(solution) for solution in _stand_ins.itersolve(clauses)}
    assert found == {(1, -2, 3), (1, -2, -3), (-1, 2, 3)}
    assert not list(_stand_ins.itersolve([[1], [-1]]))
    assert not list(_stand_ins.itersolve([[1, 2], []]))


def test_trees_are_as_far_apart_as_it_takes_to_change_one_into_the_other():
    def tree(label, *children):
        node = _stand_ins.Node(label)
        for child in children:
            node.addkid(child)
        return node

    def cost(one, other):
        return int(one != other)

    a = tree("f", tree("d", tree("a"), tree("c", tree("b"))), tree("e"))
    b = tree("f", tree("c", tree("d", tree("a"), tree("b"))), tree("e"))
    assert _stand_ins.simple_distance(a, a, cost) == 0
    assert _stand_ins.simple_distance(a, b, cost) == 2
    assert _stand_ins.simple_distance(a, tree("x"), cost) == 6


FORMULAS = [
    "[[1, 0], [0, 1]]",
    "['a', 'b']",
    "(8 - 2) * 4",
    "x**3/3 + sin(x) - C",
    "-3*x**2*exp(-x) + log(x)",
    "0x1f & 0b11",
    "7",
]
CODE = [
    "__import__('os').getpid()", "().__class__", "open('/etc/passwd').read()", "[x for x in (1, 2)]", "lambda: 1",
    "x.__class__", "getattr(x, 'y')", "sin(x).func", "f'{x}'", "x[0]", "x if y else z", "(y := 3)", "eval('1')",
    "__file__", "9**9**9", "9**(9**9)", "2**100000", "1 << 99999", "(2**4096)**4096", "sin(x, y=1)",
    "factorial(9999999)", "5! + __import__('os').getpid()",
]  # fmt: skip


@pytest.mark.parametrize("text", FORMULAS)
def test_values_and_formulas_are_read(text):
    _formulas.check(text)


@pytest.mark.parametrize("text", CODE)
def test_an_answer_that_is_code_is_refused(text):
    with pytest.raises(ValueError, match=r"formula|variable|too"):
        _formulas.check(text)


@installed
@pytest.mark.parametrize(
    "name",
    [
        "spiral_matrix",
        "string_insertion",
        "binary_matrix",
        "n_queens",
        "countdown",
        "puzzle24",
        "simple_integration",
        "intermediate_integration",
        "polynomial_multiplication",
    ],
)
def test_an_answer_is_never_run(name, tmp_path):
    reasoning_gym_env.load_question(name)
    mark = tmp_path / "run"
    look = "__import__('sys')._getframe(1).f_locals['entry']['answer']"
    for code in (f"open({str(mark)!r}, 'w')", look, f"list({look})", f"{look}.split()"):
        assert reasoning_gym_env.score(code)["score"] < 0.1
        assert not mark.exists()
