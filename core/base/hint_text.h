#pragma once
// SPDX-License-Identifier: Apache-2.0
/// What a user can try after an error, in words.

#include <string>
#include <string_view>

#include "kv/base/error.h"

namespace cairn::core {

/// Returns `text` as one word of a shell's command line: in quotation marks if necessary.
std::string ShellWord(std::string_view text);

/// Returns the address of a store from the path of one of its objects, or from its own path.
std::string StoreOfObject(const std::string& file);

/// The texts of the hints that name an option or a command in a program, and an argument or a call
/// in Python.
struct HintTexts {
  std::string create_store;
  std::string open_for_writing;
  std::string overwrite;
  std::string list_steps;
  std::string list_keys;
};

/// Returns the text of the hint of an error, such as "did you mean runs/gpt?", which begins with a
/// small letter and has no period at its end; empty: nothing is known that would help. `store` is
/// the address of the store, and `quote` returns a path or an address as one word of a shell's
/// command line. Examines the directory of the error's file. Threads: may run on many at once.
std::string HintText(const Error& error, const HintTexts& texts, const std::string& store,
                     std::string (*quote)(std::string_view) = ShellWord);

}  // namespace cairn::core
