"""Which names are right is what most clients say; where none are most, who adds nothing is believed."""

from fedsim.wire.reply.votes import usual_names

FEW, MANY = ("loss",), ("a", "loss")
SPENT = ("a", "a_epsilon", "loss")


def test_most_votes_win():
    for fullest in (True, False):
        assert usual_names([FEW, FEW, MANY], fullest) == FEW
        assert usual_names([FEW, MANY, MANY], fullest) == MANY
        assert usual_names([(), (), MANY], fullest) == MANY
        assert usual_names([(), ()], fullest) == ()


def test_a_tie_is_for_the_fullest_or_for_the_fewest():
    """Of two clients one that adds a metric must not throw the other out; nor one that leaves a tensor out."""
    assert usual_names([MANY, FEW], fullest=True) == MANY
    assert usual_names([MANY, FEW], fullest=False) == FEW


def test_in_a_tie_who_counts_what_it_spends_is_believed():
    """Of two clients one without the run's defense must not throw the defended one out."""
    assert usual_names([FEW, SPENT], fullest=False, counting=["a"]) == SPENT
    assert usual_names([SPENT, (*SPENT, "more")], fullest=False, counting=["a"]) == SPENT
    assert usual_names([FEW, FEW, SPENT], fullest=False, counting=["a"]) == FEW
    assert usual_names([SPENT, ("b_epsilon", *SPENT)], fullest=False, counting=["a", "b"]) == ("b_epsilon", *SPENT)


def test_a_budget_of_a_defense_that_counts_none_is_one_metric_more():
    assert usual_names([FEW, SPENT], fullest=False, counting=["b"]) == FEW
    assert usual_names([FEW, SPENT], fullest=False) == FEW
