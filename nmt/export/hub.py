"""Uploads of exports to the Hugging Face Hub."""

from __future__ import annotations

import shlex
from pathlib import Path

from nmt.errors import CommandError, UserError, message_of

# All files that an export can have. Files left by an earlier export may take precedence over new ones: CTranslate2
# reads `shared_vocabulary.json` even if the model has two vocabularies.
_FILES = (
    *("README.md", "config.json", "generation_config.json", "model.bin", "model.safetensors"),
    *("source.spm", "target.spm", "tokenizer_config.json", "vocab.json", "target_vocab.json"),
    *("tokenizer.model", "tokenizer.src.model", "tokenizer.tgt.model"),
    *("shared_vocabulary.json", "source_vocabulary.json", "target_vocabulary.json"),
)


def require_token() -> str:
    """Return the user's token for the hub. Raises UserError if there is none."""
    from huggingface_hub import get_token  # noqa: PLC0415 - slow import, which other commands do not need

    token = get_token()
    if not token:
        raise UserError(
            "no Hugging Face token found; --push needs one with write access; set HF_TOKEN, or run: hf auth login"
        )
    return token


def require_repository_name(name: str) -> None:
    """Raise CommandError unless a string is a valid repository name with an owner, which the model card needs."""
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # noqa: PLC0415

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        detail = message_of(error).rstrip(".")
        raise CommandError(f"--push {name}: {detail}; it must be OWNER/MODEL; correct it") from error
    if "/" not in name:
        raise CommandError(f"--push {name} has no owner; it must be OWNER/MODEL; add your user name or organization")


def push(folder: Path, name: str, *, private: bool = False) -> str:
    """Upload a folder to the repository `name` (OWNER/MODEL), create it if needed, and return its URL.

    Files of an earlier export that this one lacks are removed; other files are kept.

    private: create a private repository, and refuse to upload to a public one
    Raises UserError if there is no token, or if the hub or network fails, with the command that repeats the upload.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    # The base classes are the errors of the HTTP client, which depends on the version of huggingface_hub. An invalid
    # name raises ValueError.
    errors: tuple[type[BaseException], ...] = (HfHubHTTPError, *HfHubHTTPError.__bases__, OSError, ValueError)
    stale = [file for file in _FILES if not (folder / file).exists()]
    command = ["hf", "upload", name, str(folder), ".", *(["--private"] if private else [])]
    retry = shlex.join([*command, *(f"--delete={file}" for file in stale)])
    api = HfApi(token=require_token())
    try:
        repository = api.create_repo(name, repo_type="model", private=private or None, exist_ok=True)
        if private and not api.model_info(repository.repo_id).private:
            raise UserError(
                f"{name} is already public; --private needs a private repository; make it private on the hub, then "
                f"run: {retry}"
            )
        api.upload_folder(repo_id=repository.repo_id, folder_path=folder, repo_type="model", delete_patterns=stale)
    except errors as error:
        detail = message_of(error).rstrip(".")
        raise UserError(
            f"cannot upload {folder} as {name}: {detail}; the export in {folder} is complete; fix the cause, then "
            f"run: {retry}"
        ) from error
    return str(repository)
