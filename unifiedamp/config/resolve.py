"""From what the user wrote (or left out) to one backend, one policy and one loss scale, and where each came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..backend import Backend, EnvironmentDefaults, SessionSpec, Tuning
from ..errors import ConfigError, PolicyError, PolicyNotSupportedError, PolicyWarning, UnsupportedError
from ..loss_scale import DynamicLossScale, LossScale, parse_loss_scale
from ..plain_values import plain
from ..policy import AnyPolicy, Policy, PolicySchedule
from ..policy.schedule import check_total_steps
from . import environment, plugins
from .values import check_flag


@dataclass(frozen=True)
class Resolved:
    """What a session runs with.

    Attributes:
        policy: the one to begin with.
        origins: where backend, policy and loss scale came from.
        warnings: what the backend says of the environment, for the session to warn of.
        schedule: all policies; None for one.
    """

    backend_class: type[Backend]
    policy: Policy
    loss_scale: LossScale
    options: Mapping[str, Any]
    origins: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    schedule: PolicySchedule | None = None

    def backend(
        self,
        accumulate_steps: int,
        device: str | None,
        strict: bool,
        compile_mode: str,
        master_weights: bool,
        tuning: Tuning,
        reduce_dtype: str | None = None,
    ) -> Backend:
        """Create the backend for the other arguments of ``Amp``, and warn of settings without effect.

        Raises:
            UnsupportedError: the backend lacks what is asked for: master weights, ``reduce_dtype``, emulation or
                schedules.
            PolicyNotSupportedError: see :func:`check_block_format`.
        """
        spec = SessionSpec(
            self.policy, self.loss_scale, accumulate_steps, device, bool(strict), self.options, compile_mode,
            master_weights, tuning, reduce_dtype, self.schedule,
        )  # fmt: skip
        for message in self.warnings:
            spec.warn(message, PolicyWarning)
        for policy in spec.policies:
            check_block_format(policy)
        backend = self.backend_class(spec)
        for policy in spec.policies:
            if policy.emulate:
                backend.require("emulation", f"policy {str(policy)!r}")
        if self.schedule is not None:
            backend.require("policy_schedule", f"schedule={str(self.schedule)!r}")
        if master_weights:
            backend.require("master_weights", "master_weights=True")
        check_update(backend, self.policy)
        if reduce_dtype is not None:
            backend.require("reduce_dtype", f"reduce_dtype={reduce_dtype!r}")
        return backend


def check_block_format(policy: Policy) -> None:
    """Refuse a block format that is not emulated.

    Raises:
        PolicyNotSupportedError: naming ``emulate``.
    """
    if policy.compute_dtype == "float8" and policy.float8.block_format and not policy.emulate:
        raise PolicyNotSupportedError(
            f"policy {str(policy)!r} cannot run: products of block formats need hardware such as a GPU of compute "
            f"capability 10.0, and no backend here calls them; {str(policy.replace(emulate=True))!r} runs its "
            "numerics on any device; nearest that runs on a GPU of compute capability 8.9: 'mixed_float8'"
        )


def check_update(backend: Backend, policy: Policy) -> None:
    """Refuse an update of bfloat16 parameters, or a dtype of moments, that the backend does not have.

    Raises:
        UnsupportedError: with the reason.
    """
    if policy.update is not None:
        backend.require("weight_updates", f"update={policy.update!r}")
    dtype = policy.state_dtype
    if dtype is not None:
        backend.require("state_dtype", f"state_dtype={dtype!r}")
        known = backend.optimizer_states.dtypes
        if dtype not in known:
            raise UnsupportedError(
                f"state_dtype={dtype!r}: backend {backend.name!r} keeps moments in {' or '.join(known)} alone; nearest "
                f"policy that runs: {str(policy.replace(state_dtype=known[0]))!r}"
            )


def resolve(
    backend: str | None,
    policy: str | Policy | Mapping[str, Any] | None,
    loss_scale: object,
    device: str | None,
    backend_options: Mapping[str, Any] | None,
    master_weights: bool = False,
    schedule: Any = None,
    total_steps: int | None = None,
) -> Resolved:
    """Resolve the arguments of ``Amp``; see there."""
    origins: dict[str, str] = {}
    name = _backend_name(backend, origins)
    options = _options(backend_options, name)
    backend_class = _backend_class(name, origins)
    plan = _given_schedule(schedule, policy, total_steps)
    policy = _given_policy(policy if plan is None else plan.at(0), origins)
    defaults = EnvironmentDefaults() if policy else backend_class.environment_defaults(device, options)
    chosen = policy or _default_policy(defaults, backend_class, device, origins)
    if loss_scale is not None:
        origins["loss_scale"] = "argument"
    elif not (origins["policy"] == "argument" and any(each.loss_scale is not None for each in _all(chosen, plan))):
        loss_scale = environment.text_of("loss_scale")
        if loss_scale is not None:
            origins["loss_scale"] = environment.origin("loss_scale")
    if loss_scale is not None:
        scale = parse_loss_scale(loss_scale)
        chosen, plan = chosen.replace(loss_scale=scale), None if plan is None else plan.with_loss_scale(scale)
    origins.setdefault("loss_scale", "policy" if chosen.loss_scale is not None else "default of the policy")
    check_masters(chosen, master_weights)
    options = {**defaults.options, **options}
    warnings = (defaults.warning,) if defaults.warning else ()
    scale = _loss_scale(chosen, master_weights) if plan is None else plan.loss_scale
    return Resolved(backend_class, chosen, scale, options, origins, warnings, plan)


def region_policy(backend: Backend, enabled: object, policy: AnyPolicy) -> Policy | None:
    """Check the arguments of ``amp.autocast``, and return its policy; None stays None, the session's.

    Raises:
        ConfigError: ``enabled`` is not true or false.
        PolicyError: no policy has this name, or it is none.
        UnsupportedError: ``emulate=True`` on a backend that would run the native dtype instead.
        PolicyNotSupportedError: see :func:`check_block_format`.
    """
    if not isinstance(enabled, int):  # a flag of a command line may be 0 or 1
        hint = f"policy={enabled!r}" if isinstance(enabled, str) else "policy='float32'"
        raise ConfigError(
            f"amp.autocast: enabled must be true or false, got {enabled!r}; the device is the session's, and another "
            f"policy goes by its name: amp.autocast({hint})"
        )
    chosen = Policy.parse(policy) if isinstance(policy, str) else policy
    if chosen is not None and not isinstance(chosen, Policy):
        raise PolicyError(f"amp.autocast: policy must be a Policy or its name, got {chosen!r}")
    if chosen is not None:
        check_block_format(chosen)
    if chosen is not None and chosen.emulate:
        backend.require("emulation", f"amp.autocast(policy={str(chosen)!r})")
    return chosen


def check_masters(policy: Policy, master_weights: bool) -> None:
    """Refuse master weights where parameters are float32, and a loss scaler where neither they nor masters are.

    Raises:
        ConfigError: ``master_weights`` is not true or false.
        PolicyError: the policy does not go with it.
    """
    check_flag(master_weights, "master_weights")
    wide = policy.param_dtype == "float32"
    if master_weights and policy.update is not None:
        raise PolicyError(
            f"master_weights=True has no meaning under policy {str(policy)!r}: update={policy.update!r} is for "
            "parameters without float32 master weights; leave out one of the two"
        )
    if master_weights and wide:
        raise PolicyError(
            f"master_weights=True has no meaning under policy {str(policy)!r}: its parameters are float32 and so are "
            "their own masters; leave it out, or use policy 'float16' or 'bfloat16'"
        )
    if policy.resolved_loss_scale.enabled and not (wide or master_weights or policy.update):
        raise PolicyError(
            f"policy {str(policy)!r}: a loss scaler needs float32 parameters, but param_dtype is "
            f"{policy.param_dtype}: use 'mixed_{policy.compute_dtype}', which keeps parameters in float32, or "
            "master_weights=True, or leave loss_scale out"
        )


def _loss_scale(policy: Policy, master_weights: bool) -> LossScale:
    """Return the policy's scale; with masters, the gradients of float16 are worth keeping from underflow."""
    if policy.loss_scale is None and master_weights and policy.compute_dtype == "float16":
        return DynamicLossScale()
    return policy.resolved_loss_scale


def _backend_name(backend: str | None, origins: dict[str, str]) -> str:
    if backend is not None:
        if not isinstance(backend, str):
            raise ConfigError(f"backend must be a name such as 'torch', got {backend!r}")
        origins["backend"] = "argument"
        return backend
    named = environment.text_of("backend")
    if named is not None:
        origins["backend"] = environment.origin("backend")
        return named
    found = plugins.installed_backends()
    if len(found) == 1:
        origins["backend"] = "the one installed framework"
        return found[0]
    if found:
        raise ConfigError(
            f"several frameworks are installed ({', '.join(found)}) and no backend was named: "
            f"write Amp({found[0]!r}) or set {environment.VARIABLES['backend']}"
        )
    raise ConfigError(f"no framework is installed for any backend ({plugins.install_hints()})")


def _backend_class(name: str, origins: Mapping[str, str]) -> Any:
    if origins["backend"] != environment.origin("backend"):
        return plugins.load_backend(name)
    with environment.naming("backend"):
        return plugins.load_backend(name)


def _given_schedule(schedule: Any, policy: Any, total_steps: int | None) -> PolicySchedule | None:
    check_total_steps(total_steps)
    if schedule is None:
        if total_steps is not None:
            raise ConfigError("total_steps has no effect without schedule: leave it out")
        return None
    if policy is not None:
        raise ConfigError("policy and schedule exclude each other: name the policy in schedule, as the entry for 0")
    return PolicySchedule.of(plain(schedule, "schedule"), total_steps, _read_policy)


def _all(policy: Policy, schedule: PolicySchedule | None) -> tuple[Policy, ...]:
    return (policy,) if schedule is None else schedule.policies


def _read_policy(value: Any) -> Policy:
    """Return the policy that an argument names."""
    if isinstance(value, Mapping):
        from .arguments import policy_of_table

        return policy_of_table(value)
    if not isinstance(value, (str, Policy)):
        raise PolicyError(f"policy must be a Policy, its name or a table of its fields, got {value!r}")
    return Policy.parse(value) if isinstance(value, str) else value


def _given_policy(policy: str | Policy | Mapping[str, Any] | None, origins: dict[str, str]) -> Policy | None:
    """Return the policy named by the argument or the environment variable."""
    origins["policy"] = "argument"
    if policy is None:
        origins["policy"] = environment.origin("policy")
        policy = environment.text_of("policy")
    return None if policy is None else _read_policy(policy)


def _default_policy(
    defaults: EnvironmentDefaults, backend_class: Any, device: str | None, origins: dict[str, str]
) -> Policy:
    if defaults.policy:
        origins["policy"] = defaults.origin
        return Policy.parse(defaults.policy)
    name, reason = backend_class.default_policy(device)
    origins["policy"] = f"the device's best: {reason}"
    return Policy.parse(name)


def _options(backend_options: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    if backend_options is None:
        return {}
    if not isinstance(backend_options, Mapping):
        raise ConfigError(f"backend_options must be a mapping of backend names to settings, got {backend_options!r}")
    backend_options = plain(backend_options, "backend_options")
    known = plugins.backend_entry_points()
    for key, value in backend_options.items():
        if key not in known:
            raise ConfigError(f"backend_options: no backend {key!r} is registered{plugins.suggestion(str(key))}")
        if not isinstance(value, Mapping):
            raise ConfigError(f"backend_options.{key} must be a mapping of settings, got {value!r}")
    return dict(backend_options.get(name, {}))
