"""A world that is played on a server of the original AgentGym, behind ours.

    python train.py --env maze --data http://127.0.0.1:36001
    python env_server.py maze wordle --data maze=http://HOST:PORT,wordle=http://HOST:PORT

`use` gives such a world a class Served beside the file's own Env; env_server.py makes its sessions
of it, so that client.py speaks one wire. Prompt, families and the two built-in players stay those
of our local game. The original does not say what success is, nor whether it understood
an action: success is a score of SUCCESS, `valid` is None.
"""
import re
from contextlib import suppress

import envs
from envs.parts.answers import EnvError, brief, checked, connections, exchange, field, fields
from envs.parts.wires import wire_of

# Seconds for an answer; our own client waits 120 s for ours.
TIMEOUT = 50.0
# To connect, within a minute: time for a restart.
ATTEMPTS = 10
# What the reset of two originals wants besides the task, and ours do not.
RESET_ALSO = {"alfworld": {"world_type": "Text"}, "webarena": {"seed": 0}}
ITEM = {"id": int, "observation": str, "reward": float, "done": bool, "score": float}


def use(module, address):
    """What differs in this module's world when it is played on the original server at `address`.
    ValueError: it is not played there."""
    try:
        Served = served(module, address)
        # Its steps take their time.
        changed = dict(Served=Served, PARALLEL=True)
        if module.NAME == "wordle":
            words = vocabulary(Served())
            changed["PROMPT"] = module.PROMPT.replace(", ".join(module.LISTED), ", ".join(words))
    except EnvError as error:
        raise ValueError(f"an original AgentGym server was named, but {error}") from None
    return changed


def served(module, address):
    """-> a class like module.Env, whose episodes are played at `address`. Errors: see `find`."""
    once = connections(TIMEOUT, attempts=1)
    base = find(once, address, module.NAME)
    patient = connections(TIMEOUT, ATTEMPTS)
    return type("Served", (Original,), dict(module=module, wire=wire_of(module), base=base,
                                            once=once, patient=patient))


def vocabulary(session):
    """The words of an original wordle, which has its own. EnvError: it names none."""
    words = session.ask(f"filtered_vocab?id={session.create()}")
    return field({"words": words}, "words", list[str], session.base)


def find(http, address, name):
    """The URL where the original at this address plays the world. It greets at its root, where most
    worlds are, too. ValueError: another server is there; EnvError: none answers."""
    root = address.rstrip("/").removesuffix(f"/{name}")
    below = f"{root}/{name}"
    for url in (below, root):
        _, greeting = exchange(http, "GET", f"{url}/")
        if re.match("(?i)this is environment|ok$", str(greeting)):
            # LMRL-Gym greets at its root for both of its worlds.
            if name in ("maze", "wordle"):
                return below
            return url
    raise ValueError(f"{address} answers, but not as an original AgentGym server of {name}")


class Original(envs.Base):
    """A session on the server at `base`; `served` sets the class's module, wire and base, and what
    sends, `once` and `patient`. EnvError: that server failed. Ours then answers with an error, not
    with a reward."""
    # The session's id there.
    number = None

    def ask(self, verb, body=None, http=None):
        """Send once -> the answer. EnvError; ValueError: it refuses the task."""
        url = f"{self.base}/{verb}"
        method = "GET" if body is None else "POST"
        status, answer = exchange(http or self.patient, method, url, body)
        return checked(status, answer, url)

    def create(self):
        """The id of a new session there."""
        key = self.wire.id_key
        # Those of the second dialect want a number, which they do not read.
        body = {"id": 0} if key == "env_idx" else {}
        made = self.ask("create", body)
        if not isinstance(made, dict):
            made = {key: made}
        return field(made, key, int, self.base)

    def start(self, task_id):
        if self.number is None:
            self.number = self.create()
        name = self.module.NAME
        body = {self.wire.task_key: task_id} | RESET_ALSO.get(name, {})
        item = self.item("reset", body)
        # Its reset tells the page alone, this the objective as well.
        if name == "webarena":
            item["observation"] = self.ask(f"observation?env_idx={self.number}")
        return field(item, "observation", str, self.base)

    def act(self, action):
        item = self.item("step", {"action": action})
        won = item["score"] >= self.module.SUCCESS
        # A won episode is over, also where the original goes on: babyai would pay twice.
        done = item["done"] or won
        info = dict(success=won, valid=None, score=item["score"])
        return item["observation"], item["reward"], done, info

    def item(self, verb, body):
        """What /reset or /step answers -> `item_of` it, every value checked."""
        url = f"{self.base}/{verb}"
        body[self.wire.id_key] = self.number
        answer = self.ask(verb, body)
        try:
            item = item_of(self.wire, verb, self.number, answer)
        except (LookupError, TypeError):
            name = self.module.NAME
            raise EnvError(f"{url}: {brief(answer)} is no answer of {name}") from None
        item = fields(item, ITEM, url)
        if item["id"] != self.number:
            raise EnvError(f"{url}: an answer of id {item['id']} to {self.number}")
        return item

    def close(self):
        if self.number is not None:
            # Some originals have no /close.
            with suppress(EnvError, ValueError):
                self.ask("close", {self.wire.id_key: self.number}, self.once)


def item_of(wire, verb, number, answer):
    """What the original answered for its session `number` -> {"id", "observation", "reward",
    "done", "score"}. LookupError, TypeError: it is no such answer."""
    form = getattr(wire, verb)
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
        # Not every reset has them.
        answer = {"reward": 0, "done": False} | answer
    done = answer["terminated" if "terminated" in form else "done"]
    score = answer["score" if "score" in form else "reward"]
    number = answer.get(wire.id_key, number)
    reward = answer.get("reward")
    return dict(id=number, observation=observation, reward=reward, done=done, score=score)
