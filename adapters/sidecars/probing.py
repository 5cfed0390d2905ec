"""Whether a server is there, at an address that may be written down, and which models it has."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from adapters.sidecars.openai import API_KEY
from protocol.errors import BadInput, SidecarError


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows no redirect to another host, which would be another server, and would be handed the key."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        there = urlsplit(newurl)
        if urlsplit(req.full_url).netloc != there.netloc:
            place = f"{there.scheme}://{there.netloc.rpartition('@')[2]}"
            raise SidecarError(f"{urlsplit(req.full_url).netloc}: redirects to {place}; give that address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


#: A proxy would be measured along with the server; the replaying client takes none either.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _SameHost)


def address_of(url: str) -> str:
    """HOST:PORT.  Raises BadInput on anything but http(s)://HOST[:PORT][/PATH]; the message never repeats the URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise BadInput("--sidecar", "an address with a broken port", "http://HOST:PORT") from None
    if parts.username or parts.password or parts.query or parts.fragment:
        raise BadInput("--sidecar", "an address with credentials or a query", f"http://HOST:PORT; a key in {API_KEY}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput("--sidecar", repr(url), "http://HOST:PORT")
    return f"{parts.hostname}:{port or (443 if parts.scheme == 'https' else 80)}"


def base_of(url: str) -> str:
    """The address without the /v1 that other clients want at its end.  Raises BadInput as `address_of` does."""
    address_of(url)
    return url.rstrip("/").removesuffix("/v1")


def models_of(url: str, patience_s: float = 10.0) -> tuple[str, ...]:
    """Names of the models that a server says it has; empty where it does not say, but is there all the same.

    Raises SidecarError when nobody answers, BadInput on a malformed address.
    """
    said = _get(f"{url.rstrip('/')}/v1/models", address_of(url), patience_s)
    listed = said.get("data") if isinstance(said, dict) else None
    entries = listed if isinstance(listed, list) else []
    return tuple(m["id"] for m in entries if isinstance(m, dict) and isinstance(m.get("id"), str))


def model_at(url: str, asked: str | None) -> str:
    """The model to ask a server for: the one that was asked for if the server has it, or else the only one it has.

    Raises BadInput when the server has others, or several and none was asked for; SidecarError when nobody answers.
    """
    models = models_of(url)
    if asked is None:
        if len(models) != 1:
            raise BadInput("--model", "none given", f"one of {', '.join(models) or 'those that it serves'}")
        return models[0]
    if models and asked not in models:
        raise BadInput("--model", repr(asked), f"one that the server has: {', '.join(models)}")
    return asked


def _get(url: str, address: str, patience_s: float) -> Any:
    """The JSON at `url`, None where there is none.  A server that fails (5xx) or is silent is not there."""
    headers = {"Authorization": f"Bearer {os.environ[API_KEY]}"} if os.environ.get(API_KEY) else {}
    try:
        with OPENER.open(urllib.request.Request(url, headers=headers), timeout=patience_s) as answer:
            return json.loads(answer.read(1 << 20))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code < 500:
            return None
        raise SidecarError(f"{address}: the server answers HTTP {error.code}; expected one that serves") from None
    except SidecarError:
        raise
    except (ValueError, RecursionError):
        return None
    except Exception as error:  # refused, reset, silent, no such host: all the same to the caller
        why = getattr(error, "reason", None) or error
        raise SidecarError(f"{address}: nobody answers there ({why}); expected a server that is up") from None
