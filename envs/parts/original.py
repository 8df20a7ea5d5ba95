"""A world that is played on a server of the original AgentGym, behind ours.

    python train.py --env maze --data http://127.0.0.1:36001
    python env_server.py maze wordle --data maze=http://HOST:PORT,wordle=http://HOST:PORT

`use` puts `served`, a class like an environment's own Env, into its module; env_server.py makes its
sessions of it, so that client.py speaks one wire. Prompt, families and the two built-in players
stay those of our local game. The original does not say what success is, nor whether it understood
an action: success is a score of SUCCESS, `valid` is None.
"""
import os
import re
from contextlib import contextmanager, suppress

import envs
from envs.parts.answers import NO_ANSWER, EnvError, brief, checked, connections, exchange, field
from envs.parts.wires import wire_of

TIMEOUT = 50.0          # seconds for an answer; our own client waits 120 s for ours
ATTEMPTS = 10           # to connect, within a minute: time for a restart
RESET_ALSO = {"alfworld": {"world_type": "Text"}, "webarena": {"seed": 0}}   # not asked by ours
ITEM = {"id": int, "observation": str, "reward": float, "done": bool}


def use(module, address):
    """Play this module's world on the original server at `address`, here and in the servers that
    are started from here. ValueError: it is not played there."""
    module.Served = served(module, address)
    module.KNOWN = getattr(module, "ORIGINAL", None)    # the task ids that are there; None: all
    module.PARALLEL = True                              # its steps take their time
    if module.NAME == "wordle":                         # it has words of its own
        session = module.Served()
        with one_sentence_of(EnvError):
            words = session.ask(f"filtered_vocab?id={session.create()}")
            words = field({"words": words}, "words", list[str], address)
        module.PROMPT = module.PROMPT.replace(", ".join(module.LISTED), ", ".join(words))
    os.environ[f"NANO_{module.NAME.upper()}_SERVER"] = address


def served(module, address):
    """-> a class like module.Env, whose episodes are played at `address`. ValueError: see `find`"""
    once = connections(TIMEOUT, attempts=1)
    return type("Served", (Original,), dict(
        module=module, base=find(once, address, module.NAME), once=once,
        patient=connections(TIMEOUT, ATTEMPTS)))


def find(http, address, name):
    """The URL where the original at this address plays the world. It greets at its root, where most
    worlds are, too. ValueError: there is none."""
    root = address.rstrip("/").removesuffix(f"/{name}")
    below = f"{root}/{name}"
    with one_sentence_of(EnvError, *NO_ANSWER):
        for greets, plays in ((f"{below}/", below),
                              (f"{root}/", below if name in ("maze", "wordle") else root)):
            _, greeting = exchange(http, "GET", greets)
            if re.match("(?i)this is environment|ok$", str(greeting)):
                return plays
    raise ValueError(f"{address} answers, but not as an original AgentGym server of {name}")


@contextmanager
def one_sentence_of(*errors):
    """Within, these errors are a ValueError, which ends a command by its sentence."""
    try:
        yield
    except errors as error:
        raise ValueError(f"an original AgentGym server was named, but {error}") from None


class Original(envs.Base):
    """A session on the server at `base`; `served` sets the class's module, base, once, patient.
    EnvError: that server failed. Ours then answers with an error, never with a reward."""
    number = None       # of the session there

    def ask(self, verb, body=None, http=None):
        """Send once -> the answer. EnvError; ValueError: it refuses the task."""
        url, method = f"{self.base}/{verb}", "GET" if body is None else "POST"
        try:
            status, answer = exchange(http or self.patient, method, url, body)
        except NO_ANSWER as error:
            raise EnvError(f"{url}: {type(error).__name__}: {brief(str(error))}") from None
        return checked(status, answer, url)

    def create(self):
        """The id of a new session there."""
        key = wire_of(self.module).id_key
        made = self.ask("create", {"id": 0} if key == "env_idx" else {})
        return field(made if isinstance(made, dict) else {key: made}, key, int, self.base)

    def start(self, task_id):
        name = self.module.NAME
        if self.number is None:
            self.number = self.create()
        task = {wire_of(self.module).task_key: task_id} | RESET_ALSO.get(name, {})
        item = self.item("reset", task)
        if name == "webarena":          # its reset tells the page alone, this the objective as well
            item["observation"] = self.ask(f"observation?env_idx={self.number}")
        return field(item, "observation", str, self.base)

    def act(self, action):
        item = self.item("step", {"action": action})
        return item["observation"], item["reward"], item["done"], item["info"]

    def item(self, verb, body):
        """What /reset or /step answers -> `item_of` it, every value checked."""
        key, url = wire_of(self.module).id_key, f"{self.base}/{verb}"
        answer = self.ask(verb, {key: self.number} | body)
        try:
            item = item_of(wire_of(self.module), verb, self.number, answer, self.module.SUCCESS)
        except (LookupError, TypeError):
            raise EnvError(f"{url}: {brief(answer)} is no answer of {self.module.NAME}") from None
        for name, kind in ITEM.items():
            field(item, name, kind, url)
        field(item["info"], "score", float, url)
        if item["id"] != self.number:
            raise EnvError(f"{url}: an answer of id {item['id']} to {self.number}")
        return item

    def close(self):
        if self.number is not None:
            key = wire_of(self.module).id_key
            with suppress(EnvError, ValueError):            # some originals have no /close
                self.ask("close", {key: self.number}, self.once)


def item_of(wire, verb, number, answer, success):
    """What the original answered for its session `number` -> {"id", "observation", "reward",
    "done", "info"}. success: the score that counts as one. LookupError, TypeError: it is no such
    answer."""
    form = wire.reset if verb == "reset" else wire.step
    if form[0] == "[":
        answer = answer[0] if type(answer) is list else None
    if form[0] != "{":
        answer = {"observation": answer}
    observation = answer["state" if "state" in form else "observation"]
    if verb == "reset":
        if "task_description" in form:
            observation = "\n".join([answer["task_description"], observation])
        if "available_actions" in form:
            actions = ",".join(answer["available_actions"])
            observation = "\nAVAILABLE ACTIONS: ".join([observation, actions])
        answer = {"reward": 0, "done": False} | answer      # not every reset has them
    done = answer["terminated" if "terminated" in form else "done"]
    score = answer["score" if "score" in form else "reward"]
    won = score >= success
    return dict(id=answer.get(wire.id_key, number), observation=observation,
                reward=answer.get("reward"),
                done=True if done is False and won else done,       # or babyai pays twice
                info=dict(success=won, valid=None, score=score))
