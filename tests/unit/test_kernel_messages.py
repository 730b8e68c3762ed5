import pytest

from workbench.kernel_messages import StartNoise

NOISE = "WARNING: Using incubator modules: jdk.incubator.vector"


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([f"{NOISE}\n"], ""),
        ([NOISE, "\n", "\nown\n"], "\nown\n"),
        ([NOISE, "\nown"], "own"),
        (["before\n", f"{NOISE}\nafter\n"], "before\nafter\n"),
        (["WARNING: mine\n", "\n"], "WARNING: mine\n\n"),
    ],
)
def test_what_the_jvm_says_at_its_start_is_left_out(pieces, shown):
    noise = StartNoise()
    assert "".join(map(noise.remove, pieces)) == shown
