"""Checks of service requests."""

from __future__ import annotations

import pytest

from aenv.errors import InvalidArguments
from aenv.platform.services.service_requests import updated_env
from aenv.schema.instances import EnvServiceUpdateRequest


def test_an_image_of_the_environment_names_its_version() -> None:
    request = EnvServiceUpdateRequest(image="registry.example.com:5000/aenv/web:1.1.0")
    assert updated_env("web@1.0.0", request) == "web@1.1.0"


@pytest.mark.parametrize(
    ("runs_images", "advice"),
    [
        (False, "'docker save -o image.tar library/nginx:1.27' and 'aenv base add BASE image.tar'"),
        (True, '"artifacts": [{"type": "image", "content": "library/nginx:1.27"}] to config.json'),
    ],
)
def test_another_image_is_refused_with_how_to_run_it(runs_images: bool, advice: str) -> None:
    request = EnvServiceUpdateRequest(image="library/nginx:1.27")
    with pytest.raises(InvalidArguments, match="this service runs web; name a version of it") as caught:
        updated_env("web@1.0.0", request, runs_images=runs_images)
    assert advice in caught.value.details["hint"]
    assert "'aenv push'" in caught.value.details["hint"]
