"""Uploading an export to the Hugging Face hub."""

from __future__ import annotations

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


def push(folder: Path, name: str) -> str:
    """Upload a folder as the hub's model `name` (OWNER/MODEL), made if need be, and return its address.

    Raises UserError without a token, and for all that the hub or the network refuse.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    # What the hub refuses, and what its client for HTTP raises when there is no network: which client that is, and with
    # it the class, depends on the version of huggingface_hub. A name that is none is a ValueError.
    refusals: tuple[type[BaseException], ...] = (HfHubHTTPError, *HfHubHTTPError.__bases__, OSError, ValueError)
    api = HfApi(token=require_token())
    try:
        repository = api.create_repo(name, repo_type="model", exist_ok=True)
        api.upload_folder(repo_id=repository.repo_id, folder_path=folder, repo_type="model")
    except refusals as error:
        detail = " ".join(str(error).split())
        raise UserError(
            f"cannot upload {folder} as {name}: {detail}; the export itself is whole; mend that and upload it again"
        ) from error
    return str(repository)
