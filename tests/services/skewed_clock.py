"""A clock that is wrong, for stores that run on Node.js."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

#: Node reports the real time as `Date` of each answer, whatever the program's clock is: a store would not.
_SCRIPT = """\
const fs = require("fs");
const { ServerResponse } = require("http");
const Real = Date;
let last = { milliseconds: 0, isVisible: true };
let isReading = false;
const clock = () => {
  // What others have put into `fs` asks for the time while it reads.
  if (isReading) return last;
  isReading = true;
  last = JSON.parse(fs.readFileSync(%s));
  isReading = false;
  return last;
};
const now = () => Real.now() + clock().milliseconds;
global.Date = class extends Real {
  constructor(...given) { given.length ? super(...given) : super(now()); }
  static now() { return now(); }
};
const writeHead = ServerResponse.prototype.writeHead;
ServerResponse.prototype.writeHead = function (...given) {
  if (clock().isVisible) this.setHeader("Date", new Date().toUTCString());
  return writeHead.apply(this, given);
};
"""


@dataclass(frozen=True)
class SkewedClock:
    """The clock of one process, which may be set while it runs; at first it is right."""

    folder: Path

    def options(self) -> list[str]:
        """Return the options of Node that make a program go by it."""
        self.set(timedelta())
        script = self.folder / "clock.js"
        script.write_text(_SCRIPT % json.dumps(str(self._setting)))
        return ["-r", str(script)]

    def set(self, ahead: timedelta, *, is_visible: bool = True) -> None:
        """Set it; unless `is_visible`, answers have the real time, as behind a proxy that puts in its own."""
        text = json.dumps({"milliseconds": ahead.total_seconds() * 1000, "isVisible": is_visible})
        (new := self.folder / "clock.new").write_text(text)
        new.replace(self._setting)

    @property
    def _setting(self) -> Path:
        return self.folder / "clock.json"
