-- One row for each change, never altered. actor: user, token, policy, timer, config; name is
-- that of the user, token or policy; peer the program or the address; via: socket, tcp (by_name:
-- the token), config (by_name: the file), policy, timer.
CREATE TABLE audit (
  id       INTEGER PRIMARY KEY AUTOINCREMENT,
  revision INTEGER NOT NULL,
  unix_ms  INTEGER NOT NULL,
  actor    TEXT NOT NULL,
  uid      INTEGER,
  name     TEXT,
  pid      INTEGER,
  peer     TEXT,
  via      TEXT NOT NULL,
  by_name  TEXT,
  action   TEXT NOT NULL,
  service  TEXT,
  before   TEXT,
  after    TEXT,
  reason   TEXT NOT NULL,
  dry_run  INTEGER NOT NULL,
  bytes    INTEGER NOT NULL -- about what the row takes
) STRICT;
CREATE INDEX audit_service ON audit (service, id);
CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit
BEGIN SELECT raise(ABORT, 'the audit trail is append-only'); END;

-- What the daemon has learned, and its overlay: replaced as a whole.
CREATE TABLE state (
  key     TEXT PRIMARY KEY,
  version INTEGER NOT NULL,
  data    BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE size (audit_bytes INTEGER NOT NULL) STRICT;
INSERT INTO size VALUES (0);

CREATE VIEW changes AS
SELECT id, datetime(unix_ms / 1000, 'unixepoch') AS utc, coalesce(name, actor) AS who, via, action,
       service, before, after, reason, dry_run
  FROM audit ORDER BY id DESC;
