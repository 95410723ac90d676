"""Differences that are over when both sides are asked again, and what they may be.

The two copies are written and read at different moments, so a cell ends in one before it ends in
the other. That says nothing of the cache. What Afterglow shows of its own copy does: it may end a
row early, but shows no cell that the database has stopped showing.
"""

import re
import time

from . import compare

# Lives are of 3 s at most: two copies agree in less than so many looks.
LOOKS, APART = 10, 0.5
# A cell may end between any two of three requests, and another one between the next two.
TRIES = 3
PLAIN = re.compile(r"SELECT (.*?) FROM ", re.DOTALL)


class Fleeting:
    """Mixed into the runner, which has the sides, and the way past Afterglow."""

    def hides(self, statement, options, answers):
        """Whether the rows that Afterglow alone found are in both copies, for who asks for all of
        their columns.
        """
        if statement.table is None or not statement.table.expires:
            return False
        projection = PLAIN.match(statement.text)
        if projection is None or compare.found_more(*answers) == 0:
            return False
        whole = PLAIN.sub("SELECT * FROM ", statement.text, count=1)
        found = compare.rows(compare.Parts(answers[1]).message)
        for side in (self.direct, self.past):
            answer = side.clients[4].query(side.text(whole), *options.values)
            if compare.projected(answer, projection[1]) != found:
                return False
        return True

    def settles(self, statement, version, options, request):
        """The name of the difference if a read that tells or depends on seconds, or one of a view,
        is answered alike when asked again; None if not.
        """
        table, text = statement.table, statement.text
        of_view = table is not None and table.view and f"{table.name}_view" in text
        expires = "ttl(" in text.lower() or (table is not None and table.expires)
        if not (expires or of_view) or not text.lstrip().upper().startswith("SELECT"):
            return None
        if not self.follows(statement, version, options, request):
            return None
        for _ in range(LOOKS):
            if self.alike(statement, options, self.both(version, request), self.keyspaces):
                return "seconds of a TTL" if expires else "views that lag"
            time.sleep(APART)
        return None

    def follows(self, statement, version, options, request):
        """Whether Afterglow shows at once what its own copy does: its answer is one that the
        database gave just before it, or gives just after it.
        """
        own = (self.through.keyspace,) * 2
        for _ in range(TRIES):
            before = self.ask_past(statement, version, request)
            shown = self.through.clients[version].request(*request(self.through))
            after = self.ask_past(statement, version, request)
            self.requests += 1
            for answer in (before, after):
                if self.alike(statement, options, (answer, shown), own):
                    return True
        return False

    def alike(self, statement, options, answers, keyspaces):
        """Whether nothing differs but what one look can tell to be allowed."""
        return (
            compare.same(*answers, keyspaces)
            or compare.allowed(statement, *answers, keyspaces, options.skip_metadata) is not None
            or self.hides(statement, options, answers)
        )

    def ask_past(self, statement, version, request):
        """What the database says of Afterglow's copy when it is asked directly."""
        client = self.past.clients[version]
        part = compare.Parts(client.request(*self.prepare_request(statement, version, self.past)))
        if part.kind == compare.PREPARED:
            self.past.prepared[statement.text] = part.prepared_id, part.metadata_id
        return client.request(*request(self.past))
