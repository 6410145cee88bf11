import pytest

from fafo_run.run.lane import lane_of


@pytest.mark.parametrize(
    ("tokens", "lane"),
    [(1, 128), (128, 128), (129, 512), (512, 512), (513, 4096), (4096, 4096), (5000, 5000)],
)
def test_a_prompt_goes_to_the_lowest_lane_that_holds_it(tokens: int, lane: int) -> None:
    assert lane_of(tokens, (128, 512), 4096) == lane
