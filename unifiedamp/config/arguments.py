"""Reading a session's arguments from a TOML or JSON file or a mapping; checked by pydantic.

Imported only when a configuration is read, so that ``import unifiedamp`` stays light.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError

from ..errors import ConfigError, nearest, shown
from ..loss_scale import parse_loss_scale
from ..plain_values import plain, table_of
from ..policy import Policy
from . import environment
from .files import read_file


class PolicyTable(BaseModel):
    """``[policy]`` written as a table: a base name and what differs from it."""

    model_config = ConfigDict(extra="forbid")
    name: StrictStr | None = Field(None, description="The policy that the other settings change; float32 if left out.")
    param_dtype: StrictStr | None = Field(None, description="Dtype of the trainable parameters.")
    compute_dtype: StrictStr | None = Field(
        None, description="Dtype of matrix products and convolutions; float8 is for linear layers."
    )
    output_dtype: StrictStr | None = Field(None, description="Dtype of the model's outputs.")
    op_overrides: dict[StrictStr, StrictStr] | None = Field(
        None, description="Operation → compute (the compute dtype), float32, or widest (of its inputs)."
    )
    layer_overrides: dict[StrictStr, StrictStr] | None = Field(
        None, description="Glob over layer paths (components joined by dots) → dtype that the layer computes in."
    )
    keep_norm_float32: StrictBool | None = Field(
        None, description="Normalization layers keep parameters and statistics in float32."
    )
    update: StrictStr | None = Field(
        None, description="How bfloat16 parameters without master weights are updated: stochastic or kahan."
    )
    update_seed: StrictInt | None = Field(None, description="The seed of stochastic rounding.")
    state_dtype: StrictStr | None = Field(
        None, description="What an optimizer's moments are kept in between steps: bfloat16 or float8."
    )
    emulate: StrictBool | None = Field(
        None, description="Run the compute dtype's numerics on any device, by float32 products of rounded operands."
    )
    recipe: StrictStr | None = Field(
        None, description="How float8 operands are scaled: tensorwise, delayed, rowwise, rowwise_gw_hp or block128."
    )
    fprop: StrictStr | None = Field(None, description="A float8 layer's forward product: float8 or bfloat16.")
    dgrad: StrictStr | None = Field(None, description="A float8 layer's gradient of its inputs: float8 or bfloat16.")
    wgrad: StrictStr | None = Field(None, description="A float8 layer's gradient of its weights: float8 or bfloat16.")
    amax_history: StrictInt | None = Field(
        None, description="Of recipe delayed: the optimizer steps whose largest magnitudes set the scales."
    )
    margin: StrictInt | None = Field(
        None, description="Of recipe delayed: powers of two left free below float8's maximum."
    )

    def policy(self) -> Policy:
        """Return the policy that the table describes."""
        changes = {key: value for key, value in self.model_dump(exclude={"name"}).items() if value is not None}
        base = Policy.parse(self.name) if self.name is not None else Policy()
        return base.replace(**changes)


class AmpConfig(BaseModel):
    """The arguments of ``Amp`` as a file holds them."""

    model_config = ConfigDict(extra="forbid")
    backend: StrictStr | None = Field(
        None, description="The framework's backend, or a plugin's name. Left out: the only installed framework."
    )
    policy: StrictStr | PolicyTable | None = Field(
        None, description="A preset, another library's name for one, text, or a table. Left out: the device's best."
    )
    schedule: StrictStr | dict[StrictStr, StrictStr | PolicyTable] | None = Field(
        None,
        description="Policies by the iteration from which on they are in force, or by a percentage of total_steps.",
    )
    total_steps: Annotated[StrictInt, Field(ge=1, lt=2**31)] | None = Field(
        None, description="The iterations of the whole run, of which percentages in schedule are parts."
    )
    loss_scale: StrictStr | StrictInt | StrictFloat | dict[StrictStr, Any] | None = Field(
        None, description="A number (a fixed scale), dynamic, none, text or a table. Left out: the policy's."
    )
    accumulate_steps: Annotated[StrictInt, Field(ge=1, lt=2**31, description="Micro-batches per optimizer step.")] = 1
    device: StrictStr | None = Field(
        None, description="cpu, cuda, cuda:1, gpu(0), in the framework's spelling. Left out: its best device."
    )
    strict: StrictBool = Field(
        False, description="Turn every warning of a downgrade or of a setting without effect into an error."
    )
    master_weights: StrictBool = Field(
        False, description="Under policy float16 or bfloat16, optimizers train float32 copies of the parameters."
    )
    reduce_dtype: StrictStr | None = Field(
        None, description="Dtype in which gradients are summed between ranks. Left out: the framework's."
    )
    compile: StrictStr = Field("default", description="The default mode of amp.compile: default, max or off.")
    tuning: StrictStr | dict[StrictStr, Any] | None = Field(
        None, description="Speed settings besides the policy: fast, off or a table of items."
    )
    backend_options: dict[StrictStr, dict[StrictStr, Any]] | None = Field(
        None, description="Settings of single frameworks, by backend."
    )


class Arguments(dict[str, Any]):
    """Arguments of ``Amp``.

    Attributes:
        origins: where backend, policy and loss scale came from, for those that no caller named.
    """

    def __init__(self, arguments: Mapping[str, Any], origins: Mapping[str, str]) -> None:
        super().__init__(arguments)
        self.origins = dict(origins)


def read_arguments(source: str | Path | Mapping[str, Any], named: Mapping[str, Any] | None = None) -> Arguments:
    """Return what ``named`` says, then the environment, then the configuration.

    Args:
        source: see :func:`read_config`; ``Arguments`` read before are returned as they are.
        named: arguments that a caller or a command line named; None counts as not named.

    Raises:
        ConfigError: the configuration or a variable cannot be understood.
    """
    if isinstance(source, Arguments) and not named:
        return source
    named = {key: value for key, value in (named or {}).items() if value is not None}
    if isinstance(named.get("policy"), Mapping):
        named["policy"] = policy_of_table(named["policy"])
    arguments = {**read_config(source), **named}
    if "schedule" in named:
        arguments["policy"] = named.get("policy")
    elif "policy" in named or environment.text_of("policy") is not None:
        arguments["schedule"] = arguments["total_steps"] = None  # one policy takes the place of all
    origins = {}
    for key in environment.VARIABLES.keys() - named.keys():
        written = arguments[key]
        if written is not None:
            origins[key] = "configuration"
        if key == "policy" and arguments["schedule"] is not None:
            origins[key] = "configuration"
            continue
        text = None if key == "loss_scale" and _has_scale(named.get("policy")) else environment.text_of(key)
        if text is not None:
            before = "" if written is None else f", before the configuration's {_shown(key, written)!r}"
            arguments[key], origins[key] = text, environment.origin(key) + before
    return Arguments(arguments, origins)


def _has_scale(policy: Any) -> bool:
    policy = Policy.parse(policy) if isinstance(policy, str) else policy
    return policy is not None and policy.loss_scale is not None


def _shown(key: str, written: Any) -> str:
    return str(parse_loss_scale(written) if key == "loss_scale" else written)


def read_config(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of ``Amp`` that ``source`` describes, and nothing else does."""
    if not isinstance(source, str | os.PathLike | Mapping):
        raise ConfigError(f"a configuration is a file's path or a mapping of settings, got {shown(source)}")
    table, where = (source, "configuration") if isinstance(source, Mapping) else (read_file(Path(source)), str(source))
    table = plain(table_of(table, "amp"), where)
    config = validate(AmpConfig, table, where)
    arguments: dict[str, Any] = {key: getattr(config, key) for key in AmpConfig.model_fields}
    if isinstance(config.policy, PolicyTable):
        arguments["policy"] = config.policy.policy()
    if isinstance(config.schedule, dict):
        arguments["schedule"] = {
            key: each.policy() if isinstance(each, PolicyTable) else each for key, each in config.schedule.items()
        }
    return arguments


def policy_of_table(table: Mapping[str, Any]) -> Policy:
    """Return the policy that a mapping describes: ``name``, and the fields that differ from it.

    Raises:
        ConfigError: an unknown field, or a value of the wrong type.
    """
    read: PolicyTable = validate(PolicyTable, plain(table, "policy"), "policy")
    return read.policy()


def validate(model: type[BaseModel], table: Any, where: str) -> Any:
    """Check ``table`` against ``model``.

    Raises:
        ConfigError: names the first wrong key, the nearest right one, or the type that was wanted.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: expected a table of settings, got {shown(table)}")
    for key in table:
        if not isinstance(key, str):
            raise ConfigError(f"{where}: a setting's name must be text, got {shown(key)}")
    try:
        return model.model_validate(dict(table))
    except ValidationError as error:
        # A union reports each alternative; the one that got deepest is the one that was meant.
        problem = max(error.errors(), key=lambda one: len(one["loc"]))
        path = ".".join(str(part) for part in problem["loc"] if not _is_union_tag(str(part)))
        if problem["type"] == "extra_forbidden":
            known = list(PolicyTable.model_fields if "PolicyTable" in problem["loc"] else model.model_fields)
            hint = nearest(str(problem["loc"][-1]), known)
            raise ConfigError(f"{where}: unknown key {shown(path)}{hint} (known: {', '.join(known)})") from None
        raise ConfigError(f"{where}: {path}: {problem['msg']} (got {shown(problem['input'])})") from None


def _is_union_tag(part: str) -> bool:
    return part in ("str", "int", "float", "PolicyTable") or part.startswith("dict[")
