from topiclake.ingest import resume_table


def test_spans_that_others_do_not_hold():
    assert resume_table.without((0, 10), []) == [(0, 10)]
    assert resume_table.without((0, 10), [(0, 10)]) == []
    assert resume_table.without((0, 10), [(7, 12), (2, 4), (3, 5)]) == [(0, 2), (5, 7)]
    assert resume_table.without((5, 5), [(0, 10)]) == []
