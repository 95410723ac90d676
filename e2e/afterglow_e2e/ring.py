"""Several instances over one database as one cache: started, watched and killed."""

import json
import secrets
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from .afterglow import Afterglow, binary
from .process import Failure, free_port, poll, scratch
from .relay import Relay

# How many shards a ring has.
SHARDS = 4096


class Ring:
    """Instances with one secret over one database, each with its own data folder. `homes` has the
    address and the wrapper of each. `policies` are in a file, and `set_policies` changes them. If
    they are `relayed`, instances reach each other through `relays`, one before each.
    """

    def __init__(
        self,
        backend,
        members,
        folder=None,
        profile=None,
        extra=(),
        homes=None,
        policies=(),
        relayed=False,
    ):
        self.relays = []
        self.temporary = folder is None
        self.folder = Path(folder or scratch("ring-")).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.profile = profile
        secret = self.folder / "secret"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32) + "\n")
        self.configuration, self.lease = self.folder / "afterglow.toml", "held"
        self._write_policies(policies)
        more = {"policies": ()} if policies else {}
        self.members = [
            Afterglow(
                backend,
                **more,
                folder=self.folder / f"member-{n}",
                profile=profile,
                extra=(
                    *self._links(address, relayed),
                    *("--ring-secret", secret),
                    *("--config", self.configuration),
                    *extra,
                ),
                address=address,
                wrapper=wrapper,
            )
            for n, (address, wrapper) in enumerate(homes or [("127.0.0.1", ())] * members)
        ]

    def _links(self, address, relayed):
        """Options that say where others reach an instance."""
        port = free_port()
        if not relayed:
            return ("--ring-address", f"{address}:{port}")
        near = free_port()
        self.relays.append(Relay(address, near, (address, port)))
        listens = ("--ring-address", f"{address}:{port}")
        return (*listens, "--ring-advertise", f"{address}:{near}")

    def _write_policies(self, policies):
        if policies:
            is_exclusive = any("exclusive" in policy for policy in policies)
            self.lease = "held" if is_exclusive else "not_needed"
            self.configuration.write_text(f"table-policy = {json.dumps(policies)}\n")
        else:
            self.configuration.touch()

    def set_policies(self, *policies):
        """Others from now on, in one member after the other. `settle` waits until all have them."""
        self._write_policies(policies)
        for member in self.running():
            member.child.signal(signal.SIGHUP)

    def __enter__(self):
        return self.start()

    def __exit__(self, *failure):
        self.stop()

    def start(self):
        for member in self.members:
            member.start()
        return self

    def stop(self):
        """Ends all, and leaves no folder if that was ours."""
        for each in self.members:
            each.stop()
        for relay in self.relays:
            relay.close()
        if self.temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, member, *words):
        """What `afterglow ring` prints about a member."""
        program = [binary(profile=self.profile), "ring", *words, "--data-dir", member.data]
        done = subprocess.run(program, capture_output=True, text=True)
        if done.returncode != 0:
            raise Failure(f"afterglow ring {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def status(self, member):
        return json.loads(self.command(member, "status", "--json"))

    def owners(self, member):
        """The id of who owns each shard, in their order; None where nobody does."""
        status = json.loads(self.command(member, "status", "--shards", "--json"))
        owners = [None] * status["shards"]
        for each in status["ranges"]:
            count = each["last_shard"] + 1 - each["first_shard"]
            owners[each["first_shard"] : each["last_shard"] + 1] = [each["owner"]] * count
        return owners

    def shards(self, member):
        """How many shards a member owns, as it says itself."""
        status = self.status(member)
        return next(each["shards"] for each in status["members"] if each["id"] == status["me"])

    @staticmethod
    def ask(member, command, seconds=1.0):
        """What `afterglow ring` asks and is answered, without the cost of a process; None if the
        member does not answer. `leave` is not waited for.
        """
        try:
            with socket.socket(socket.AF_UNIX) as asking:
                asking.settimeout(seconds)
                asking.connect(str(member.data / "operator.sock"))
                asking.sendall(f"ring {command}\n".encode())
                with asking.makefile() as answer:
                    return json.loads(answer.readline()).get("done")
        except (OSError, ValueError):
            return None

    def running(self):
        return [member for member in self.members if member.running()]

    def is_settled(self):
        """Whether all that run are members with the same part of the shards, and cache. An instance
        without a ring that was killed a moment ago has its lease for up to a minute.
        """
        running = self.running()
        for member in running:
            try:
                status = self.status(member)
            except Failure:
                return False
            shards = [each["shards"] for each in status["members"]]
            even = len(shards) == len(running) and max(shards) - min(shards) <= 1
            active = all(each["state"] == "active" for each in status["members"])
            if not (even and active and status["lease_ms"] > 0) or status["differs"]:
                return False
            if member.metrics().total("afterglow_lease_state", state=self.lease) != 1:
                return False
        return True

    def settle(self, seconds=150):
        """Shards move once the members have been the same for a minute."""
        poll("the ring to settle", self.is_settled, seconds, every=0.5)
        return self
