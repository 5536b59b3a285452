"""Uploading an export to the Hugging Face hub."""

from __future__ import annotations

import shlex
from pathlib import Path

from nmt.recipe import UserError


def require_token() -> str:
    """The user's token for the hub; UserError where there is none."""
    from huggingface_hub import get_token  # noqa: PLC0415 - slow to import, and every command would wait for it

    token = get_token()
    if not token:
        raise UserError(
            "there is no Hugging Face token; --push needs one with write access; set HF_TOKEN, or run: hf auth login"
        )
    return token


def require_repository_name(name: str) -> None:
    """Raise UserError unless the hub may have a model of this name."""
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # noqa: PLC0415

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        detail = " ".join(str(error).split()).rstrip(".")
        raise UserError(f"--push {name}: {detail}; it must be OWNER/MODEL; correct it") from error


def push(folder: Path, name: str, *, private: bool = False) -> str:
    """Upload a folder as the hub's model `name` (OWNER/MODEL), made if need be, and return its address.

    private: only its owner shall see it; refused where a public model of this name is there already
    Raises UserError without a token, and for all that the hub or the network refuse, with the command that uploads the
    folder again.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    # What the hub refuses, and what its client for HTTP raises when there is no network: which client that is, and with
    # it the class, depends on the version of huggingface_hub. A name that is none is a ValueError.
    refusals: tuple[type[BaseException], ...] = (HfHubHTTPError, *HfHubHTTPError.__bases__, OSError, ValueError)
    api = HfApi(token=require_token())
    try:
        repository = api.create_repo(name, repo_type="model", private=private or None, exist_ok=True)
        if private and not api.model_info(repository.repo_id).private:
            raise UserError(
                f"{name} is public already; --private needs a private model; make it private on its page on the hub, "
                f"then run: {_upload_command(folder, name, private)}"
            )
        api.upload_folder(repo_id=repository.repo_id, folder_path=folder, repo_type="model")
    except refusals as error:
        detail = " ".join(str(error).split()).rstrip(".")
        raise UserError(
            f"cannot upload {folder} as {name}: {detail}; the export in {folder} is complete; correct the cause, then "
            f"run: {_upload_command(folder, name, private)}"
        ) from error
    return str(repository)


def _upload_command(folder: Path, name: str, private: bool) -> str:
    return shlex.join(["hf", "upload", name, str(folder), ".", *(["--private"] if private else [])])
