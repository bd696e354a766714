#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Collects a report of a store.

#include "core/inspect/report.h"
#include "kv/base/error.h"
#include "kv/store.h"

namespace cairn::core {

/// Collects a report. Damage of single steps, tables and segments is part of the result. kDataLoss,
/// kUnavailable: the list of steps cannot be read. kCancelled: `options.progress` asked to stop.
/// Memory: about 400 bytes per tensor and 90 bytes per chunk of one step. Threads: as Snapshot.
Result<Report> CollectReport(const kv::Store& store, const ReportOptions& options = {});

}  // namespace cairn::core
