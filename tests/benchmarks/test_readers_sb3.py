"""Stable-Baselines3's files: written by hand, and by Stable-Baselines3 itself."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import yaml
from made_runs import evaluations, monitor, only, points, texts

from zoo.benchmarks.readers import read
from zoo.errors import UserError


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "ppo" / "CartPole-v1" / "seed-4"


def test_evaluations_are_means_over_their_episodes(folder):
    run = only(evaluations(folder, [100, 200], [[1.0, 3.0], [4.0, 8.0]]))
    assert points(run) == [(100, 2), (200, 6)]
    assert (run.label, run.env, run.seed) == ("SB3 PPO", "CartPole-v1", 4)
    assert (run.kind, run.unit, run.metric) == ("sb3", "environment steps", "return")
    assert (run.status, run.settings, run.named) == ("unknown", {}, False)
    assert run.curves["evaluation"].wall_s is None


def test_training_is_the_rolling_mean_of_the_episodes_at_their_cumulative_steps(folder):
    monitor(folder / "monitor.csv", [(10.0, 10, 1.0), (20.0, 20, 2.0), (60.0, 30, 4.0)])
    run = only(folder)
    assert points(run, "training") == [(10, 10), (30, 15), (60, 30)]
    assert run.curves["training"].wall_s.tolist() == [1, 2, 4]


def test_the_rolling_mean_is_of_the_last_hundred_episodes(folder):
    monitor(folder / "monitor.csv", [(float(i), 1, float(i)) for i in range(1, 151)])
    assert points(only(folder), "training")[-1] == (150, np.mean(range(51, 151)))


def test_vector_environments_are_merged_by_the_time_their_episodes_ended(folder):
    # the second environment began 1 s later, so its clock is 1 s behind
    monitor(folder / "0.monitor.csv", [(1.0, 10, 1.0), (3.0, 10, 3.0)], t_start=100.0)
    monitor(folder / "1.monitor.csv", [(2.0, 10, 1.0), (4.0, 10, 3.0)], t_start=101.0)
    run = only(folder)
    assert points(run, "training") == [(10, 1), (20, 1.5), (30, 2), (40, 2.5)]
    assert run.curves["training"].wall_s.tolist() == [1, 2, 3, 4]


def test_the_clock_of_evaluations_is_the_monitor_s(folder):
    monitor(folder / "monitor.csv", [(1.0, 100, 10.0), (1.0, 100, 30.0)])
    run = only(evaluations(folder, [50, 150, 200, 250], [[1.0]] * 4))
    # half of the first episode, half of the second, its end, and 50 steps on at 200 steps / 30 s
    assert run.curves["evaluation"].wall_s.tolist() == [5, 20, 30, 37.5]


def test_a_monitor_that_ends_long_before_the_evaluations_gives_them_no_clock(folder):
    monitor(folder / "monitor.csv", [(1.0, 100, 10.0)])
    run = only(evaluations(folder, [50, 201], [[1.0]] * 2))
    assert run.curves["evaluation"].wall_s is None


def test_a_monitor_file_that_was_continued_has_one_clock(folder):
    monitor(folder / "monitor.csv", [(1, 10, 5.0), (1, 10, 9.0), (1, 10, 2.0), (1, 10, 1.0)])
    collection = read([str(folder)])
    assert collection.runs[0].curves["training"].wall_s.tolist() == [5, 9, 11, 12]
    assert "was continued" in texts(collection)


def test_the_task_that_the_monitor_names_goes_before_the_path_s(folder):
    monitor(folder / "monitor.csv", [(1.0, 10, 1.0)], env="Acrobot-v1")
    assert only(folder).env == "Acrobot-v1"
    collection = read([f"A@Other-v1={folder}"])  # and a person's word before both, with a note
    assert collection.runs[0].env == "Other-v1"
    assert "its own files say Acrobot-v1" in texts(collection)
    assert texts(read([f"A@Acrobot-v1={folder}"])) == ""


def test_monitors_of_two_tasks_in_one_folder_are_refused(folder):
    monitor(folder / "0.monitor.csv", [(1.0, 10, 1.0)], env="Acrobot-v1")
    monitor(folder / "1.monitor.csv", [(1.0, 10, 1.0)], env="CartPole-v1")
    with pytest.raises(UserError, match="mixes the episodes of Acrobot-v1 and CartPole-v1"):
        read([str(folder)])


def test_monitors_with_names_of_their_own_are_runs_of_their_own(tmp_path):
    for seed in (1, 2):
        monitor(tmp_path / "logs" / f"a2c_seed{seed}.monitor.csv", [(seed, 10, 1.0)])
    runs = read([str(tmp_path)]).runs
    assert [(r.label, r.seed) for r in runs] == [("SB3 A2C", 1), ("SB3 A2C", 2)]


def test_one_environment_s_monitor_stands_for_the_whole_run(folder):
    for i in range(2):
        file = monitor(folder / f"{i}.monitor.csv", [(i, 10, 1.0 + i)])
    run = only(file)
    assert (run.source, points(run, "training")) == (folder, [(10, 0), (20, 0.5)])


def test_an_npz_with_a_name_of_its_own_is_read_where_it_is_named(tmp_path):
    evaluations(tmp_path, [10], [[1.0]])
    file = (tmp_path / "evaluations.npz").rename(tmp_path / "td3_Pendulum-v1_s2.npz")
    run = only(file)
    assert (run.label, run.env, run.seed, points(run)) == ("SB3 TD3", "Pendulum-v1", 2, [(10, 1)])


def test_folders_that_are_parts_of_a_run_are_read_as_one(folder):
    evaluations(folder / "eval", [100], [[5.0]])
    monitor(folder / "train" / "monitor.csv", [(1.0, 100, 1.0)])
    monitor(folder / "eval" / "monitor.csv", [(99.0, 100, 1.0)])  # the evaluation's own episodes
    run = only(folder.parent)
    assert (points(run), points(run, "training")) == ([(100, 5)], [(100, 1)])
    assert run.source == folder


def test_progress_csv_gives_what_no_other_file_does(folder):
    folder.mkdir(parents=True)
    (folder / "progress.csv").write_text(
        "time/total_timesteps,rollout/ep_rew_mean,time/time_elapsed,eval/mean_reward\n"
        "100,10.0,2,\n150,,,12.5\n200,20.0,4,\n"
    )
    run = only(folder)
    assert points(run, "training") == [(100, 10), (200, 20)]
    assert points(run) == [(150, 12.5)]
    assert run.curves["evaluation"].wall_s.tolist() == [3]
    evaluations(folder, [100], [[7.0]])
    assert points(only(folder)) == [(100, 7)]


def test_rl_zoo_s_arguments_give_task_seed_algorithm_and_settings(tmp_path):
    folder = evaluations(tmp_path / "logs" / "x_1", [100], [[1.0]])
    beside = folder / "CartPole-v1"
    beside.mkdir()
    arguments = OrderedDict(algo="ppo", env="CartPole-v1", seed=42, conf_file=None)
    settings = OrderedDict(batch_size=256, policy="MlpPolicy", policy_kwargs={"a": 1})
    (beside / "args.yml").write_text(yaml.dump(arguments))
    (beside / "config.yml").write_text(yaml.dump(settings))
    run = only(tmp_path)
    assert (run.label, run.env, run.seed) == ("SB3 PPO", "CartPole-v1", 42)
    assert run.settings == {"batch_size": 256, "policy": "MlpPolicy", "policy_kwargs.a": 1}


def test_objects_in_yaml_are_not_made(tmp_path):
    folder = evaluations(tmp_path / "logs" / "ppo_7", [100], [[1.0]])
    mark = tmp_path / "ran"
    (folder / "args.yml").write_text(
        f"env: CartPole-v1\nseed: !!python/object/apply:os.mkdir ['{mark}']\n"
    )
    assert only(folder).seed == 7
    assert not mark.exists()


def test_a_task_that_nothing_names_is_one_sentence_for_all(tmp_path):
    for name in ("mine-1", "mine-2"):
        evaluations(tmp_path / name, [100], [[1.0]])
    with pytest.raises(UserError, match=r"'LABEL@CartPole-v1=.*mine-1'.*\(and 1 other like it\)"):
        read([str(tmp_path)])
    runs = read([f"X@CartPole-v1={tmp_path}"]).runs
    assert [(run.label, run.env, run.seed, run.named) for run in runs] == [
        ("X", "CartPole-v1", 1, True),
        ("X", "CartPole-v1", 2, True),
    ]


def test_nan_in_the_middle_is_noted_and_at_the_end_diverges(folder):
    nan = float("nan")
    evaluations(folder, [1, 2, 3], [[1.0, 1.0], [nan, 1.0], [3.0, 3.0]])
    collection = read([str(folder)])
    assert (points(collection.runs[0]), collection.runs[0].status) == ([(1, 1), (3, 3)], "unknown")
    assert "evaluation: 1 value that" in texts(collection)
    evaluations(folder, [1, 2], [[1.0], [nan]])
    assert only(folder).status == "diverged"


def write_npz(folder, **arrays):
    folder.mkdir(parents=True)
    np.savez(folder / "evaluations.npz", **arrays)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"timesteps": [1, 2]}, "has no array results"),
        ({"results": [[1.0]]}, "has no array timesteps"),
        ({"timesteps": ["1"], "results": [[1.0]]}, "must be numbers"),
        ({"timesteps": [1, 2], "results": [[1.0]]}, r"shape \(2,\) and results \(1, 1\)"),
        ({"timesteps": [1, 2], "results": [1.0, 2.0]}, "must be"),
        ({"timesteps": [], "results": np.zeros((0, 5))}, "must be"),
        ({"timesteps": [1], "results": np.zeros((1, 0))}, "must be"),
        ({"timesteps": [1], "results": np.array([[1]], object)}, "pickled objects"),
    ],
)
def test_an_npz_of_something_else_is_one_sentence(folder, arrays, message):
    write_npz(folder, **arrays)
    with pytest.raises(UserError, match=message) as caught:
        read([str(folder)])
    assert "evaluations.npz" in str(caught.value)


class Trap:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.mkdir, (self.mark,)


def test_a_pickle_is_refused_and_not_run(folder, tmp_path):
    folder.mkdir(parents=True)
    (folder / "evaluations.npz").write_bytes(pickle.dumps(Trap(tmp_path / "mark")))
    with pytest.raises(UserError, match="pickled objects|no npz file"):
        read([str(folder)])
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("junk", [b"", b"PK\x03\x04junk", bytes(range(256))])
def test_junk_for_an_npz_is_one_sentence(folder, junk):
    folder.mkdir(parents=True)
    (folder / "evaluations.npz").write_bytes(junk)
    with pytest.raises(UserError, match="evaluations.npz"):
        read([str(folder)])


def test_an_npz_that_holds_one_array_is_one_sentence(folder):
    folder.mkdir(parents=True)
    with (folder / "evaluations.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(UserError, match="no npz file"):
        read([str(folder)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("#{}\nr,l\n1,2\n", "needs the columns r, l and t"),
        ("#no json\nr,l,t\n", "line 1 is no header"),
        ("#{}\nr,l,t\n1,2,3\nx,2,3\n1,2,4\n", "line 4 can't be read"),
        ("#{}\nr,l,t\n1,0,3\n", "must be positive"),
        ("#{}\nr,l,t\n1,nan,3\n", "must be positive"),
    ],
)
def test_a_broken_monitor_file_is_one_sentence(folder, text, message):
    folder.mkdir(parents=True)
    (folder / "monitor.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        read([str(folder)])


def test_a_half_written_last_episode_is_left_out_with_a_note(folder):
    file = monitor(folder / "monitor.csv", [(1.0, 10, 1.0)])
    file.write_text(file.read_text() + "5.0,1")
    collection = read([str(folder)])
    assert points(collection.runs[0], "training") == [(10, 1)]
    assert "half-written" in texts(collection)


def test_a_monitor_without_episodes_beside_evaluations_does_no_harm(folder):
    monitor(folder / "monitor.csv", [])
    run = only(evaluations(folder, [100], [[1.0]]))
    assert list(run.curves) == ["evaluation"]


def test_a_folder_with_nothing_but_an_empty_monitor_is_a_note(tmp_path, folder):
    monitor(folder / "monitor.csv", [])
    evaluations(tmp_path / "sac" / "CartPole-v1_s1", [100], [[1.0]])
    collection = read([str(tmp_path)])
    assert [run.label for run in collection.runs] == ["SB3 SAC"]
    assert "recorded nothing" in texts(collection)


def test_files_that_stable_baselines3_wrote(tmp_path):
    sb3 = pytest.importorskip("stable_baselines3")
    import gymnasium
    from stable_baselines3.common.callbacks import EvalCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.monitor import Monitor

    for seed in (0, 1):
        folder = str(tmp_path / "ppo" / f"seed-{seed}")
        envs = make_vec_env("CartPole-v1", 2, seed=seed, monitor_dir=folder)
        model = sb3.PPO(
            "MlpPolicy", envs, n_steps=64, batch_size=64, n_epochs=1, seed=seed, device="cpu"
        )
        evaluator = Monitor(gymnasium.make("CartPole-v1"))
        callback = EvalCallback(
            evaluator, log_path=folder, eval_freq=100, n_eval_episodes=2, verbose=0
        )
        model.learn(512, callback=callback)
        envs.close()
    runs = read([str(tmp_path)]).runs
    assert [(r.label, r.env, r.seed) for r in runs] == [
        ("SB3 PPO", "CartPole-v1", 0),
        ("SB3 PPO", "CartPole-v1", 1),
    ]
    with np.load(Path(folder) / "evaluations.npz") as arrays:
        assert runs[1].curves["evaluation"].step.tolist() == arrays["timesteps"].tolist()
        assert runs[1].curves["evaluation"].value == pytest.approx(arrays["results"].mean(1))
    lines = [
        line.split(",")
        for file in Path(folder).glob("*.monitor.csv")
        for line in file.read_text().splitlines()[2:]
    ]
    training = runs[1].curves["training"]
    assert training.step[-1] == sum(int(line[1]) for line in lines)
    last = np.mean([float(line[0]) for line in lines])  # fewer than a hundred
    assert training.value[-1] == pytest.approx(last)
    clock = runs[1].curves["evaluation"].wall_s
    assert clock is not None
    assert (np.diff(clock) > 0).all()
