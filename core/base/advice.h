#pragma once
// SPDX-License-Identifier: Apache-2.0
/// What a user can try after an error, in addition to what its message states.
///
/// The layers below state what failed, where, and what exists instead. What to do about it depends
/// on where the error is shown: programs name commands and options, Python names calls and
/// arguments. The programs and the Python package therefore ask for advice when they show an error.

#include <string>
#include <string_view>

#include "kv/base/error.h"

namespace cairn::core {

/// Where an error is shown.
struct AdviceContext {
  bool is_python = false;
  /// The address of the store as the user wrote it; empty: it is derived from the file of the
  /// error.
  std::string store;
  /// Returns a path or an address as one word of a shell's command line; null: it is put in
  /// quotation marks if that is needed.
  std::string (*quote)(std::string_view) = nullptr;
};

/// Returns the advice, which begins with a small letter and has no period at its end, such as
/// "did you mean runs/gpt?". Empty: the message names it, or nothing is known that would help.
/// Examines the directory of the error's file. Threads: may run on many threads at once.
std::string Advise(const Error& error, const AdviceContext& context);

}  // namespace cairn::core
