"""Record store on Redis or Valkey, for hubs that several servers share.

A record is a hash; an index is a sorted set in lexicographic order. Every commit is one Lua script, which the server
runs atomically, and no query scans all keys. A script may have run although its reply was lost, so each commit has
an idempotency id, and the server remembers its result for ten minutes.

The store needs a single server (replicas are fine), not a cluster: its scripts access keys that a cluster would place
on different nodes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from aenv.errors import ConfigError, Unavailable
from aenv.storage.base import (
    BY_KEY,
    SCAN_BUDGET,
    BlockingStore,
    Change,
    Delete,
    Page,
    Put,
    Query,
    Record,
    Stale,
    entries_of,
    pack,
    unpack,
)

try:
    import redis
    from redis.backoff import ExponentialWithJitterBackoff
    from redis.retry import Retry
except ImportError as error:  # pragma: no cover - the tests install the extra
    raise ConfigError(
        "the Redis client is not installed",
        {"hint": "Install it with: pip install 'aenvironment[redis]'"},
    ) from error

T = TypeVar("T")

PREFIX = "aenv:"
# KEYS[1] is the prefix <p> of all keys. Records: <p>r:<space>:<key>, indexes: <p>i:<space>:<index>. The result of a
# commit is kept for ten minutes under <p>done:<id>, for retries.
_COMMIT = """
local p = KEYS[1]
local done = p .. 'done:' .. ARGV[1]
local before = redis.call('GET', done)
if before then return tonumber(before) end
local at = 3
local count = tonumber(ARGV[2])
for _ = 1, count do
  local kind, space, key, expect, entries = ARGV[at], ARGV[at+1], ARGV[at+2], tonumber(ARGV[at+3]), tonumber(ARGV[at+4])
  if expect >= 0 then
    local revision = tonumber(redis.call('HGET', p .. 'r:' .. space .. ':' .. key, 'n') or '0')
    if revision ~= expect then return {space, key} end
  end
  at = at + 8 + entries * 2
end
local revision = redis.call('INCR', p .. 'revision')
at = 3
for _ = 1, count do
  local kind, space, key, entries = ARGV[at], ARGV[at+1], ARGV[at+2], tonumber(ARGV[at+4])
  local value, packed, expires = ARGV[at+5], ARGV[at+6], ARGV[at+7]
  local record = p .. 'r:' .. space .. ':' .. key
  if kind ~= 'check' then
    local old = redis.call('HGET', record, 'e')
    if old then
      redis.call('ZREM', p .. 'i:' .. space .. ':*', key .. '\\31' .. key)
      for index, sort in string.gmatch(old, '([^\\30\\31]+)\\31([^\\30\\31]*)') do
        redis.call('ZREM', p .. 'i:' .. space .. ':' .. index, sort .. '\\31' .. key)
      end
    end
  end
  if kind == 'put' then
    redis.call('HSET', record, 'v', value, 'n', revision, 'e', packed, 'x', expires)
    if expires == '' then redis.call('PERSIST', record) else redis.call('PEXPIREAT', record, expires) end
    for i = 0, entries - 1 do
      redis.call('ZADD', p .. 'i:' .. space .. ':' .. ARGV[at+8+i*2], 0, ARGV[at+9+i*2])
    end
    redis.call('SADD', p .. 'spaces', space)
  elseif kind == 'delete' then
    redis.call('DEL', record)
  end
  at = at + 8 + entries * 2
end
redis.call('SET', done, revision, 'EX', 600)
return revision
"""

_PAGE = """
local p, space = KEYS[1], ARGV[1]
local low, high, reverse, limit, offset, budget =
  ARGV[2], ARGV[3], ARGV[4] == '1', tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local driver, fewest, others = nil, nil, {}
for i = 8, #ARGV do
  local name = p .. 'i:' .. space .. ':' .. ARGV[i]
  local size = redis.call('ZCARD', name)
  if size == 0 then return {false} end
  if not fewest or size < fewest then
    if driver then others[#others + 1] = driver end
    driver, fewest = name, size
  else
    others[#others + 1] = name
  end
end
local answer, found, seen, last = {false}, 0, 0, nil
if offset > 0 then
  -- By rank, so that a late page costs as little as an early one.
  local start, first = 0, nil
  if low ~= '-' then
    local below = string.sub(low, 1, 1) == '[' and '(' or '['
    start = redis.call('ZLEXCOUNT', driver, '-', below .. string.sub(low, 2))
  end
  if reverse then
    local stop = redis.call('ZLEXCOUNT', driver, '-', high)
    if stop - 1 - offset < start then return {false} end
    first = redis.call('ZRANGE', driver, stop - 1 - offset, stop - 1 - offset)
    high = '[' .. first[1]
  else
    first = redis.call('ZRANGE', driver, start + offset, start + offset)
    if #first == 0 then return {false} end
    low = '[' .. first[1]
  end
end
while seen < budget do
  local chunk = math.min(200, budget - seen, #others > 0 and 200 or limit - found)
  local places
  if reverse then
    places = redis.call('ZREVRANGEBYLEX', driver, high, low, 'LIMIT', 0, chunk)
  else
    places = redis.call('ZRANGEBYLEX', driver, low, high, 'LIMIT', 0, chunk)
  end
  for _, place in ipairs(places) do
    seen, last = seen + 1, place
    local fits = true
    for _, other in ipairs(others) do
      if not redis.call('ZSCORE', other, place) then fits = false break end
    end
    if fits then
      local key = string.sub(place, string.find(place, '\\31', 1, true) + 1)
      local record = redis.call('HMGET', p .. 'r:' .. space .. ':' .. key, 'v', 'n')
      if record[1] then
        found = found + 1
        answer[#answer + 1] = key
        answer[#answer + 1] = record[1]
        answer[#answer + 1] = record[2]
        if found == limit then answer[1] = last return answer end
      else
        redis.call('ZREM', driver, place)
      end
    end
  end
  if #places < chunk then return answer end
  if reverse then high = '(' .. last else low = '(' .. last end
end
answer[1] = last
return answer
"""


class RedisStore(BlockingStore):
    """Store on the server at ``redis://[user:password@]host[:port][/db]``, ``rediss://`` (TLS) or ``unix://``."""

    def __init__(self, url: str, *, timeout: float = 5.0, retries: int = 5) -> None:
        self.url = without_password(url)
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        self._prefix = options.pop("prefix", PREFIX)
        bare = urlunsplit(parts._replace(query=urlencode(options)))
        try:
            self._redis: Any = redis.Redis.from_url(
                bare,
                socket_timeout=timeout,
                socket_connect_timeout=timeout,
                health_check_interval=30,
                retry=Retry(ExponentialWithJitterBackoff(cap=1.0, base=0.05), retries),
                retry_on_error=[redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError],
            )
        except (ValueError, TypeError) as error:
            raise ConfigError(f"invalid Redis URL '{self.url}': {error}") from None
        self._commit_script = self._redis.register_script(_COMMIT)
        self._page_script = self._redis.register_script(_PAGE)

    async def close(self) -> None:
        self._redis.close()

    def _get_many(self, space: str, keys: Sequence[str]) -> list[Record | None]:
        def ask() -> list[Any]:
            with self._redis.pipeline(transaction=False) as pipe:
                for key in keys:
                    pipe.hmget(self._record(space, key), "v", "n")
                answers: list[Any] = pipe.execute()
                return answers

        answers = self._request(ask)
        return [
            Record(key, value, int(revision)) if value is not None else None
            for key, (value, revision) in zip(keys, answers, strict=True)
        ]

    def _commit(self, changes: Sequence[Change]) -> int:
        args: list[Any] = [uuid.uuid4().hex, len(changes)]
        for change in changes:
            if isinstance(change, Put):
                entries = entries_of(change)
                expires = "" if change.expires is None else str(max(0, int(change.expires * 1000)))
                args += ["put", change.space, change.key, change.expect, len(entries), change.value]
                args += [pack(change.entries), expires]
                for index, where in entries:
                    args += [index, where]
            else:
                kind = "delete" if isinstance(change, Delete) else "check"
                args += [kind, change.space, change.key, change.expect, 0, "", "", ""]
        answer = self._request(lambda: self._commit_script(keys=[self._prefix], args=args))
        if isinstance(answer, list):
            raise Stale(*(part.decode() for part in answer))
        return int(answer)

    def _page(self, query: Query) -> Page:
        low = f"[{query.low}" if query.low else "-"
        high = f"({query.high}" if query.high else "+"
        if query.after is not None and query.reverse:
            high = f"({min(query.after, query.high) if query.high else query.after}"
        elif query.after is not None and query.after >= query.low:
            low = f"({query.after}"
        budget = SCAN_BUDGET if len(query.indexes) > 1 else query.limit
        args: list[Any] = [
            query.space,
            low,
            high,
            int(query.reverse),
            query.limit,
            query.offset,
            budget,
            *query.indexes,
        ]
        following, *rest = self._request(lambda: self._page_script(keys=[self._prefix], args=args))
        records = [Record(rest[i].decode(), rest[i + 1], int(rest[i + 2])) for i in range(0, len(rest), 3)]
        return Page(records, following.decode() if following is not None else None)

    def _dump(self) -> Iterator[list[Put]]:
        for space in sorted(self._request(lambda: self._redis.smembers(f"{self._prefix}spaces"))):
            yield from self._dump_space(space.decode())

    def _dump_space(self, space: str) -> Iterator[list[Put]]:
        after = b"-"
        while True:
            ask_places = partial(
                self._redis.zrangebylex, f"{self._prefix}i:{space}:{BY_KEY}", after, "+", start=0, num=self.CHUNK
            )
            places = self._request(ask_places)
            if not places:
                return
            after = b"(" + places[-1]
            keys = [where.decode().rpartition("\x1f")[2] for where in places]

            def ask(keys: list[str] = keys) -> list[Any]:
                with self._redis.pipeline(transaction=False) as pipe:
                    for key in keys:
                        pipe.hmget(self._record(space, key), "v", "e", "x")
                    answers: list[Any] = pipe.execute()
                    return answers

            puts = [
                Put(space, key, value, unpack(packed.decode()), float(expires) / 1000 if expires else None)
                for key, (value, packed, expires) in zip(keys, self._request(ask), strict=True)
                if value is not None
            ]
            if puts:
                yield puts

    def _record(self, space: str, key: str) -> str:
        return f"{self._prefix}r:{space}:{key}"

    def _request(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
            raise ConfigError(f"the Redis at {self.url} rejected the user or password of its URL") from error
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            raise Unavailable(
                f"the store at {self.url} does not answer",
                details={"hint": "Is the Redis running, and can this machine reach it?"},
            ) from error
        except redis.ResponseError as error:
            raise Unavailable(f"the store at {self.url} failed: {error}") from error


def legacy_records(url: str, prefix: str = "env") -> Iterator[bytes]:
    """Yield the JSON documents of a 0.1 hub from its Redis: the set ``env:index`` lists their keys."""
    source = RedisStore(url)
    try:
        for key in source._request(lambda: sorted(source._redis.sscan_iter(f"{prefix}:index", count=500))):
            whole = key if key.startswith(f"{prefix}:".encode()) else f"{prefix}:data:".encode() + key
            value = source._request(partial(source._redis.get, whole))
            if value is not None:
                yield value
    finally:
        source._redis.close()


def without_password(url: str) -> str:
    """Return a URL without its password, for logs and messages."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    kept = urlencode([pair for pair in parse_qsl(parts.query) if pair[0] not in ("password", "username")])
    return urlunsplit(parts._replace(netloc=f"***@{host}" if "@" in parts.netloc else host, query=kept))
