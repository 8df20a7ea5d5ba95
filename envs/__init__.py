"""The environments: one file each, and in this one what all of them do alike.

    env = bandit.Env()
    observation = env.reset(7)              # task 7, one of bandit.TRAIN
    observation, reward, done, info = env.step("dragon")

A file of this folder is its rules: some constants (tests/test_envs.py checks them) and a class
Env(envs.Base). It defines

    start(task_id)          the first observation of a task; the same text whenever it is asked
    act(action)             one turn: (observation, reward, done, info). Any text may come;
                            nonsense is answered, changes nothing and costs the turn
    expert()                (thought, action) of a player that succeeds from here
    random_action(rng)      an action that looks legal, drawn with rng
    close()                 only where something is held: a process, a file

info is {"success": bool, "valid": bool, "score": float}: the task is solved; the environment
understood the action; the score of the episode so far. `success` is the same as score >= SUCCESS.
"""
import random
import sys


class Base:
    done = None         # is the episode over? None: no episode has begun

    def reset(self, task_id, stream=None):
        """Begin an episode of this task and return its first observation.

        Chance during the episode is drawn from self.luck, a function of the task and of `stream`:
        the trajectories of a group share the task, and so the prompt, but each has its own stream.
        ValueError: there is no such task.
        """
        name, last = self.module.NAME, self.last_task()
        if type(task_id) is not int or not 0 <= task_id <= last:
            raise ValueError(f"{name}: no task {task_id!r}; tasks are 0..{last}")
        self.luck = random.Random(f"{name} {task_id} {stream}")
        observation = self.start(task_id)
        self.done = False
        return observation

    def step(self, action):
        """Play one turn: (observation, reward, done, info). ValueError: no episode is going on."""
        if self.done is not False:
            problem = "the episode is over; reset first" if self.done else "call reset first"
            raise ValueError(f"{self.module.NAME}: {problem}")
        observation, reward, self.done, info = self.act(action)
        return observation, reward, self.done, info

    def close(self):
        """Give back what is held, if anything is."""

    def last_task(self):
        """The largest task id; the smallest is 0."""
        return max(self.module.TRAIN[-1], self.module.TEST[-1])

    @property
    def module(self):
        """The file that defines this Env; its constants NAME, TRAIN and TEST are used here."""
        return sys.modules[type(self).__module__]

    @staticmethod
    def split_actions(text, known, most=5):
        """Several actions in one reply, as in RAGEN: "Up || fly || left" -> (["up", "left"], False).

        The first `most` parts count, and those not in `known` are dropped. The flag says that there
        was an action and that none was dropped.
        """
        parts = [part.strip().lower() for part in text.split("||") if part.strip()][:most]
        actions = [part for part in parts if part in known]
        return actions, 0 < len(actions) == len(parts)
