"""What the one-shot experiment chooses by validation and by evidence, and its accuracies at these choices."""

from __future__ import annotations

import numpy as np
import xarray as xr


def with_choices(dataset: xr.Dataset) -> xr.Dataset:
    """The Dataset with the temperature of each width, and the width that is compared, from validation and evidence."""
    validation = dataset.accuracy.sel(part="validation", drop=True)
    evidence = dataset.log_evidence.where(np.isfinite(dataset.log_evidence), -np.inf)
    finite = validation.max("temperature").where(np.isfinite(dataset.width), -np.inf)
    return dataset.assign(
        temperature_by_validation=validation.idxmax("temperature"),
        temperature_by_evidence=evidence.idxmax("temperature"),
        compared_width=finite.idxmax("width"),
    )


def at_choice(dataset: xr.Dataset, how: str) -> xr.Dataset:
    """The Dataset at the temperature that was chosen for each width, by "validation" or by "evidence"."""
    return dataset.sel(temperature=dataset[f"temperature_by_{how}"])


def with_trained_order(dataset: xr.Dataset) -> xr.DataArray:
    """Accuracy of the Gaussian predictor with the U of the trained weights, at the τ that validation chooses."""
    accuracy = dataset.trained_order_accuracy
    return accuracy.sel(temperature=accuracy.sel(part="validation", drop=True).idxmax("temperature"))


def repeated(repetitions: list[xr.Dataset]) -> xr.Dataset:
    """Accuracies of all repetitions, each at the choices of its own validation characters and evidence."""
    found: list[xr.Dataset] = []
    for one in repetitions:
        values = {
            "repeated_accuracy": at_choice(one, "validation").accuracy,
            "repeated_evidence_accuracy": at_choice(one, "evidence").accuracy,
            "repeated_trained_accuracy": one.trained_accuracy,
            "repeated_trained_order_accuracy": with_trained_order(one),
        }
        if "free_accuracy" in one:
            values["repeated_free_accuracy"] = one.free_accuracy
        # Their temperatures differ, and would be taken for a coordinate that all share.
        found.append(
            xr.Dataset({name: value.drop_vars("temperature", errors="ignore") for name, value in values.items()})
        )
    return xr.concat(found, "repetition", data_vars="all", coords="minimal", compat="override", join="exact")


def repeated_accuracies(dataset: xr.Dataset) -> dict[str, xr.DataArray]:
    """Accuracies [repetition, width, part], or [repetition, part], by what is chosen how."""
    if "repeated_accuracy" in dataset:
        names = {
            "τ by validation": "repeated_accuracy",
            "τ by evidence": "repeated_evidence_accuracy",
            "τ and variance by evidence": "repeated_free_accuracy",
            "trained U": "repeated_trained_order_accuracy",
            "trained network": "repeated_trained_accuracy",
        }
        return {name: dataset[variable] for name, variable in names.items() if variable in dataset}
    found = {
        "τ by validation": at_choice(dataset, "validation").accuracy,
        "τ by evidence": at_choice(dataset, "evidence").accuracy,
        "trained U": with_trained_order(dataset),
        "trained network": dataset.trained_accuracy,
    }
    if "free_accuracy" in dataset:
        found["τ and variance by evidence"] = dataset.free_accuracy
    return {name: values.expand_dims("repetition") for name, values in found.items()}
