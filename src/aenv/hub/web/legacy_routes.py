"""Legacy routes of 0.1 clients (``/env``, ``/token``, ``/data``), with their JSON format."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any, get_args

from aenv.errors import Forbidden, InvalidArguments, NotFound, Unavailable
from aenv.hub.access.hub_tokens import OWNER, HubToken, HubTokens
from aenv.hub.access.rights import Level
from aenv.hub.records import ENV
from aenv.hub.web.bodies import LegacyEnv, LegacyImage, LegacyToken
from aenv.hub.web.route import Exchange, Handler, Route
from aenv.schema.envhub import RELEASED, EnvDetail, EnvSummary, EnvVersion, HubRequestModel, Status, status_number
from aenv.schema.instances import Env
from aenv.schema.names import STATUSES, check_version
from aenv.schema.ref import EnvRef
from aenv.storage.open_url import data_folder

_BLOCKS = ("buildConfig", "testConfig", "deployConfig")
LIST_LIMIT = 10_000
"""Maximum number of versions in a list, which has no pages in this API."""


async def _exists(x: Exchange) -> dict[str, Any]:
    try:
        found = await _exact_version(x)
    except NotFound:
        return {"exists": False}
    return {"exists": True, "status": status_number(found.status)}


async def _create(x: Exchange) -> bool:
    x.hub.caller.need("push")
    request = x.body(LegacyEnv)
    if request.name is None or request.version is None:
        raise InvalidArguments("name and version are required")
    x.hub.caller.need("push", request.name)
    version = EnvSummary(
        name=request.name,
        version=_version(request.version),
        status=_status(request.status) or "Ready",
        description=request.description or "",
        tags=request.tags or [],
    )
    gate = None if x.hub.caller is OWNER else x.hub.gate(request.name)
    await x.hub.catalog.register(
        version, _detail(EnvDetail(), request), update=False, gate=gate, skip_quota=x.hub.caller.is_admin
    )
    return True


async def _update(x: Exchange) -> bool:
    await x.hub.require_level(x.path["name"], Level.WRITE)
    request = x.body(LegacyEnv)
    known = await _exact_version(x)
    if known.status == RELEASED:
        raise Forbidden(f"{known.name}@{known.version} is released and cannot change", known.name)
    changes: dict[str, Any] = {
        "description": request.description,
        "tags": request.tags,
        "status": _status(request.status),
    }
    summary = EnvSummary.model_validate(known.model_dump()).model_copy(
        update={key: value for key, value in changes.items() if value is not None}
    )
    detail = EnvDetail(**{name: getattr(known, name) for name in EnvDetail.model_fields})
    await x.hub.catalog.register(summary, _detail(detail, request), update=True, skip_quota=x.hub.caller.is_admin)
    return True


async def _state(x: Exchange) -> dict[str, str]:
    return {"status": (await _exact_version(x)).status}


async def _release(x: Exchange) -> bool:
    await x.hub.require_level(x.path["name"], Level.WRITE)
    known = await _exact_version(x)
    if known.status == RELEASED:
        raise Forbidden(f"{known.name}@{known.version} is released already", known.name)
    await x.hub.release(known.name, known.version)
    return True


async def _get(x: Exchange) -> Env:
    return _env(await _exact_version(x))


async def _list(x: Exchange) -> list[Env]:
    values = dict(pair.partition("=")[::2] for pair in x.request.query.decode("latin-1").split("&"))
    limit = min(_number(values.get("limit"), LIST_LIMIT), LIST_LIMIT)
    offset = _number(values.get("offset"), 0)
    found = await x.hub.catalog.every_version((await x.hub.view()).fits, max(1, limit), offset)
    return [_env(version) for version in await x.hub.catalog.details(found)]


async def _sign(x: Exchange) -> str:
    env = x.path["name"]
    read = b"style=read" in x.request.query
    x.hub.caller.need("push", env)
    if read or await x.hub.catalog.store.get(ENV, env) is not None:
        await x.hub.require_level(env, Level.READ if read else Level.WRITE)
    else:
        await x.hub.gate(env)(None)
    url = x.hub.catalog.blobs.upload_url(upload_name(env, _version(x.path["version"])), read=read)
    if url is None:
        raise Unavailable(
            "this hub stores its files itself and cannot sign URLs: push with the current aenv ('aenv push'), or let "
            "the earlier one register the image only ('aenv config set storage_config.type local')",
            details={"hint": "Push with: aenv push"},
        )
    return url


def upload_name(env: str, version: str) -> str:
    """Return the object name of an upload, unique for each name and version.

    A dash alone would be ambiguous: ``game`` in version ``2-1.0`` and ``game-2`` in version ``1.0`` would collide.
    """
    mark = "@" if re.match(r"[0-9a-z-]+-[0-9]", version) else "-"
    return f"{env}{mark}{version}.tar"


async def _image_built(x: Exchange) -> bool:
    await x.hub.require_level(x.path["name"], Level.WRITE)
    known = await _exact_version(x)
    image = x.body(LegacyImage).image

    def change(detail: EnvDetail) -> EnvDetail:
        others = [artifact for artifact in detail.artifacts if artifact.get("type") != "image"]
        return detail.model_copy(update={"artifacts": [{"type": "image", "content": image}, *others]})

    await x.hub.catalog.change_detail(known.name, known.version, change)
    return True


async def _data(x: Exchange) -> dict[str, str] | None:
    """Return the image of a benchmark's task, from a file that an administrator provides."""
    values = dict(pair.partition("=")[::2] for pair in x.request.query.decode("latin-1").split("&"))
    scenario, instance = values.get("scenario", ""), values.get("instance", "")
    if not scenario or not instance:
        raise InvalidArguments("scenario and instance are required")
    file = data_folder() / "datasource" / "swe-verify-images.json"
    if scenario != "swebench" or not file.is_file():
        return None
    image = json.loads(file.read_text(encoding="utf-8")).get(instance)
    return {"image": image, "instance": instance} if isinstance(image, str) else None


# --- tokens


async def _make_token(x: Exchange) -> dict[str, Any]:
    x.hub.caller.need("admin")
    request = x.body(LegacyToken)
    token, text = await _tokens(x).create(
        user=request.user, scope="push", max_instances=request.maxInstanceCount, for_instances=True
    )
    return {**_token(token), "token": text}


async def _change_token(x: Exchange) -> dict[str, Any]:
    x.hub.caller.need("admin")
    request = x.body(LegacyToken)
    return _token(await _tokens(x).change(request.id, user=request.user, max_instances=request.maxInstanceCount))


async def _validate_token(x: Exchange) -> dict[str, Any]:
    return {**_token(await _tokens(x).check(x.path["token"])), "token": x.path["token"]}


async def _token_info(x: Exchange) -> dict[str, Any]:
    x.hub.caller.need("admin")
    return _token(await _tokens(x).get(x.path["id"]))


async def _drop_token(x: Exchange) -> bool:
    x.hub.caller.need("admin")
    await _tokens(x).revoke(x.path["id"])
    return True


def _tokens(x: Exchange) -> HubTokens:
    return HubTokens(x.hub.catalog.store, x.hub.catalog.clock)


def _token(token: HubToken) -> dict[str, Any]:
    return {"id": token.id, "token": "", "user": token.user, "maxInstanceCount": token.max_instances}


# --- conversion


async def _exact_version(x: Exchange) -> EnvVersion:
    name, version = x.path["name"], _version(x.path["version"])
    found = await x.hub.get(name, version)
    if found.version != version:
        raise NotFound(f"there is no {EnvRef(name, version)} in this hub", name)
    return found


def _env(version: EnvVersion) -> Env:
    config = version.config
    return Env(
        id=f"{version.name}-{version.version}",
        name=version.name,
        description=version.description,
        version=version.version,
        tags=version.tags,
        code_url=version.code_url,
        status=status_number(version.status),
        artifacts=version.artifacts or config.get("artifacts") or [],
        build_config=config.get("buildConfig"),
        test_config=config.get("testConfig"),
        deploy_config=config.get("deployConfig"),
        created_at=version.created_at or datetime.now(UTC).isoformat(),
        updated_at=version.updated_at,
    )


def _detail(detail: EnvDetail, request: LegacyEnv) -> EnvDetail:
    config = {**detail.config, **{key: value for key in _BLOCKS if (value := getattr(request, key)) is not None}}
    return detail.model_copy(
        update={
            "config": config,
            "artifacts": detail.artifacts if request.artifacts is None else request.artifacts,
            "code_url": detail.code_url if request.codeUrl is None else request.codeUrl,
        }
    )


def _status(value: str | int | None) -> Status | None:
    """Parse a status given by name or number. Released becomes None: only the release route sets it."""
    if value is None or value == "":
        return None
    name = STATUSES[value] if isinstance(value, int) and 0 <= value < len(STATUSES) else value
    if name not in get_args(Status):
        raise InvalidArguments(f"invalid status {str(value)[:40]!r}; expected one of {', '.join(STATUSES)}")
    return None if name == RELEASED else name  # type: ignore[return-value]


def _version(text: str) -> str:
    try:
        return check_version(text)
    except ValueError as error:
        raise InvalidArguments(str(error)) from None


def _number(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else default


_ONE = "/env/{name}/{version}"
_Object = dict[str, Any]


def _route(
    method: str,
    path: str,
    summary: str,
    handler: Handler,
    answer: Any,
    body: type[HubRequestModel] | None = None,
    needs: str = "",
) -> Route:
    return Route(method, path, summary, handler, answer, None, body, needs, legacy=True, tag="older")


ROUTES = (
    _route("GET", f"{_ONE}/exists", "Check whether a version exists", _exists, _Object),
    _route("GET", f"{_ONE}/status", "Get the status of a version", _state, dict[str, str]),
    _route("POST", f"{_ONE}/release", "Release a version", _release, bool, None, "push"),
    _route("POST", f"{_ONE}/sign", "Get a pre-signed URL", _sign, str, None, "push"),
    _route("POST", f"{_ONE}/aci_trigger", "Record the image of a version", _image_built, bool, LegacyImage, "push"),
    _route("GET", _ONE, "Get a version", _get, Env),
    _route("PUT", _ONE, "Update the details of a version", _update, bool, LegacyEnv, "push"),
    _route("POST", "/env", "Register a version without its files", _create, bool, LegacyEnv, "push"),
    _route("GET", "/env", "List all versions", _list, list[Env]),
    _route("GET", "/data", "Get the image of a benchmark's task", _data, dict[str, str] | None),
    _route("POST", "/token", "Create a token", _make_token, _Object, LegacyToken, "admin"),
    _route("PUT", "/token", "Change a token", _change_token, _Object, LegacyToken, "admin"),
    _route("GET", "/token/validate/{token}", "Validate a token", _validate_token, _Object),
    _route("GET", "/token/info/{id}", "Get a token", _token_info, _Object, None, "admin"),
    _route("DELETE", "/token/{id}", "Revoke a token", _drop_token, bool, None, "admin"),
)
