-- Names of services; number 0, which has no row, is all of them together.
CREATE TABLE service (
  id    INTEGER PRIMARY KEY,
  name  TEXT NOT NULL UNIQUE,
  first INTEGER NOT NULL, -- unix s: first and last second with points, to the minute
  last  INTEGER NOT NULL
) STRICT;

-- key = unix time of the block / its length << 20 | service
CREATE TABLE second (key INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;
CREATE TABLE minute (key INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;
CREATE TABLE hour   (key INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;

-- Slots that have not become blocks yet, all services in one row; at = unix s.
CREATE TABLE open_second (at INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;
CREATE TABLE open_minute (at INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;
CREATE TABLE open_hour   (at INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;

-- Bytes of blocks of each tier (0, 1, 2), and the first unix s that it still has.
CREATE TABLE tier (level INTEGER PRIMARY KEY, bytes INTEGER NOT NULL, horizon INTEGER NOT NULL) STRICT;
INSERT INTO tier VALUES (0, 0, 0), (1, 0, 0), (2, 0, 0);

-- What can be read without a program: which blocks there are.
CREATE VIEW blocks AS
SELECT '1s' AS resolution, datetime((key >> 20) * 60, 'unixepoch') AS utc,
       coalesce(name, '(total)') AS service, length(data) AS bytes
  FROM second LEFT JOIN service ON id = key & 1048575
UNION ALL
SELECT '1min', datetime((key >> 20) * 3600, 'unixepoch'), coalesce(name, '(total)'), length(data)
  FROM minute LEFT JOIN service ON id = key & 1048575
UNION ALL
SELECT '1h', datetime((key >> 20) * 86400, 'unixepoch'), coalesce(name, '(total)'), length(data)
  FROM hour LEFT JOIN service ON id = key & 1048575;
