"""CSV tables: how they may look, and the sentences for what they must not hold."""

from __future__ import annotations

import pytest
from made_runs import points, texts

from zoo.benchmarks.readers import read
from zoo.errors import UserError

HEAD = "algo,env,seed,step,value\n"


@pytest.fixture
def table(tmp_path):
    def write(text, name="table.csv", encoding="utf-8"):
        (tmp_path / name).write_bytes(text.encode(encoding))
        return str(tmp_path / name)

    return write


def test_each_algorithm_task_and_seed_is_a_run(table):
    rows = "A,E,0,10,1\nA,E,0,20,2\nA,E,1,10,3\nB,E,0,10,4\nA,F,0,10,5\n"
    runs = read([table(HEAD + rows)]).runs
    assert [(r.label, r.env, r.seed, points(r)) for r in runs] == [
        ("A", "E", 0, [(10, 1), (20, 2)]),
        ("A", "E", 1, [(10, 3)]),
        ("B", "E", 0, [(10, 4)]),
        ("A", "F", 0, [(10, 5)]),
    ]
    run = runs[0]
    assert (run.kind, run.metric, run.unit, run.status) == ("csv", "return", "steps", "unknown")
    assert run.curves["evaluation"].wall_s is None
    assert not run.named


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_columns_stand_in_any_order_and_case_behind_any_delimiter(table, delimiter):
    text = "Value,STEP,Seed,Env,Algo\n1.5,10,0,E,A\n".replace(",", delimiter)
    (run,) = read([table(text)]).runs
    assert (run.label, run.env, run.seed, points(run)) == ("A", "E", 0, [(10, 1.5)])


def test_a_byte_order_mark_windows_lines_quotes_and_blank_lines_are_taken(table):
    text = HEAD.replace("\n", "\r\n") + '\r\n"A, the best",E,0,10,1\r\n,,,,\r\n'
    (run,) = read([table(text, encoding="utf-8-sig")]).runs
    assert run.label == "A, the best"


def test_the_header_tells_what_separates(table):
    (run,) = read([table('algo;env;seed;step;value\n"a,b,c,d,e,f,g";E;0;1;2\n')]).runs
    assert run.label == "a,b,c,d,e,f,g"


def test_an_accuracy_may_be_all_or_nothing(table):
    text = "algo,env,seed,step,value,metric\nA,E,0,1,0,accuracy\nA,E,0,2,1,accuracy\n"
    assert points(read([table(text)]).runs[0]) == [(1, 0), (2, 1)]


def test_a_folder_is_searched_for_tables_by_their_first_line(table, tmp_path):
    table(HEAD + "A,E,0,1,1\n", "yes.CSV")
    table(HEAD + "B,E,0,1,1\n", "no.txt")
    table("x" + HEAD + "C,E,0,1,1\n", "no.csv")
    (tmp_path / "junk.csv").write_bytes(b"\xff\xfe\x00")
    assert [run.label for run in read([str(tmp_path)]).runs] == ["A"]


def test_optional_columns_give_clock_metric_and_unit(table):
    text = "algo,env,seed,step,value,wall_s,metric,unit\nA,E,0,1,0.5,2.5,accuracy,updates\n"
    (run,) = read([table(text)]).runs
    assert (run.metric, run.unit) == ("accuracy", "updates")
    assert run.curves["evaluation"].wall_s.tolist() == [2.5]


def test_other_columns_are_ignored_with_a_note(table):
    collection = read([table("algo,env,seed,step,value,loss,notes\nA,E,0,1,2,3,x\n")])
    assert "columns loss, notes ignored" in texts(collection)


def test_a_seed_that_is_not_known_is_none_and_one_from_a_spreadsheet_is_whole(table):
    runs = read([table(HEAD + "A,E,,1,1\nB,E,3.0,1,1\nC,E,nan,1,1\n")]).runs
    assert [run.seed for run in runs] == [None, 3, None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        (HEAD, "has a header and no rows"),
        ("algo,env,seed,step\nA,E,0,1\n", "has no column value"),
        ("algo,env,seed,step,values\nA,E,0,1,2\n", "no column value: .*Did you mean 'values'"),
        ("algo,algo,env,seed,step,value\n", "two columns algo"),
        (HEAD + "A,E,0,1,2\nA,E,0,x,2\n", "line 3: step is 'x', not a number"),
        (HEAD + "A,E,0,,2\n", "line 2: step is empty"),
        (HEAD + "A,E,0,inf,2\n", "line 2: step is inf"),
        (HEAD + "A,E,0,1,good\n", "line 2: value is 'good', not a number"),
        (HEAD + 'A,E,0,1,"1,5"\n', "line 2: value is '1,5'"),
        (HEAD + "A,E,one,1,2\n", "line 2: seed is 'one', not a whole number"),
        (HEAD + "A,E,0.5,1,2\n", "line 2: seed is '0.5'"),
        (HEAD + "A,E,0,1\n", "line 2 has no value: the row is too short"),
        (HEAD + ",E,0,1,2\n", "line 2: algo is empty"),
        (HEAD + "A,E,0,1,1\nA,E,0,2,2\nA,E,0,2,3\n", "line 4: .*at step 2 on line 3"),
        (HEAD + "A,E,0,1,2\nB,E,0,1,7\nA,E,0,1,3\n", "line 4: A E 0 has another value.*line 2"),
        ("algo,env,seed,step,value,metric\nA,E,0,1,2,reward\n", "line 2: metric is 'reward'"),
        ("algo,env,seed,step,value,metric\nA,E,0,1,45,accuracy\n", "must be a fraction"),
        ("algo,env,seed,step,value,metric\nA,E,0,1,1.5,accuracy\n", "an accuracy of 1.5"),
        (
            "algo,env,seed,step,value,unit\nA,E,0,1,2,steps\nA,E,0,2,2,updates\n",
            "line 3: metric or unit is another than on line 2",
        ),
        (HEAD + "A,E,0,1,\x00\n", "line 2"),
    ],
)
def test_what_is_wrong_is_one_sentence_that_says_where(table, text, message):
    with pytest.raises(UserError, match=message) as caught:
        read([table(text)])
    assert "table.csv" in str(caught.value)


def test_binary_junk_is_one_sentence(tmp_path):
    (tmp_path / "x.csv").write_bytes(bytes(range(256)) * 8)
    with pytest.raises(UserError, match="no text in UTF-8"):
        read([str(tmp_path / "x.csv")])


def test_values_that_are_missing_in_the_middle_are_dropped_with_a_note(table):
    collection = read([table(HEAD + "A,E,0,1,1\nA,E,0,2,\nA,E,0,3,nan\nA,E,0,4,4\n")])
    assert points(collection.runs[0]) == [(1, 1), (4, 4)]
    assert "A on E, seed 0: evaluation: 2 values" in texts(collection)
    assert collection.runs[0].status == "unknown"


def test_a_run_that_ends_in_nan_diverged(table):
    runs = read([table(HEAD + "A,E,0,1,1\nA,E,0,2,inf\nB,E,0,1,nan\n")]).runs
    assert [run.status for run in runs] == ["diverged", "diverged"]
    assert [list(run.curves) for run in runs] == [["evaluation"], []]


def test_the_later_segment_of_a_resumed_run_stands(table):
    collection = read([table(HEAD + "A,E,0,1,1\nA,E,0,2,2\nA,E,0,3,3\nA,E,0,2,7\nA,E,0,3,8\n")])
    assert points(collection.runs[0]) == [(1, 1), (2, 7), (3, 8)]
    assert "go back" in texts(collection)


def test_a_row_that_is_there_twice_counts_once(table):
    collection = read([table(HEAD + "A,E,0,1,1\nA,E,0,1,1\nA,E,0,2,2\n")])
    assert points(collection.runs[0]) == [(1, 1), (2, 2)]
    assert collection.notes == ()


def test_a_label_renames_one_algorithm_and_goes_before_several(table):
    one, two = table(HEAD + "A,E,0,1,1\n", "1.csv"), table(HEAD + "A,E,0,1,1\nB,E,0,1,1\n", "2.csv")
    assert [(r.label, r.named) for r in read([f"X={one}"]).runs] == [("X", True)]
    assert [r.label for r in read([f"X={two}"]).runs] == ["X A", "X B"]


def test_another_task_than_the_table_s_is_refused(table):
    with pytest.raises(UserError, match="is of E, not of F"):
        read([f"X@F={table(HEAD + 'A,E,0,1,1')}"])
    assert read([f"X@E={table(HEAD + 'A,E,0,1,1')}"]).runs[0].env == "E"


EXPORT = (
    '"Step","CartPole-v1__ppo__3__1700000000 - charts/episodic_return",'
    '"CartPole-v1__ppo__3__1700000000 - charts/episodic_return__MIN"\n'
    '"1","4","0"\n"2","",""\n"3","8","0"\n'
)


def test_a_chart_that_wandb_exported_is_read(table):
    (run,) = read([table(EXPORT)]).runs
    assert (run.label, run.env, run.seed, run.kind) == ("CleanRL ppo", "CartPole-v1", 3, "wandb")
    assert (run.unit, points(run, "training")) == ("steps", [(1, 4), (3, 6)])
    assert not run.named


def test_the_axis_of_an_exported_chart_tells_what_steps_count(table):
    text = "global_step,a-1 - eval/mean_reward,a-2 - eval/mean_reward\n10,1,\n20,,2\n"
    runs = read([f"X@CartPole-v1={table(text)}"]).runs
    assert [(r.label, r.seed, r.unit, points(r)) for r in runs] == [
        ("X", 1, "environment steps", [(10, 1)]),
        ("X", 2, "environment steps", [(20, 2)]),
    ]
    assert all(run.named for run in read([f"X@CartPole-v1={table(text)}"]).runs)
    text = "Step,ppo-CartPole-v1-4 - eval/return_mean\n1,5\n2,NaN\n"
    (run,) = read([table(text)]).runs
    assert (run.label, run.seed, run.unit, run.status) == ("PPO", 4, "updates", "diverged")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Step,a-1 - loss\n1,2\n", "none of the figures that are read, but loss"),
        ("Step,a-1 - eval/mean_reward\n1,x\n", "line 2: 'x' is not a number"),
        ("Step,a-1 - eval/mean_reward\n1,2\n", "'LABEL@CartPole-v1="),
    ],
)
def test_an_exported_chart_that_can_t_be_read_is_one_sentence(table, text, message):
    with pytest.raises(UserError, match=message):
        read([table(text)])
