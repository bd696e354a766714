// What a user can try after an error: what damage of a store needs, and what a wrong path meant.

#include "core/base/hint_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <system_error>
#include <vector>

#include "core/base/close_name.h"

namespace cairn::core {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxEntries = 1'000;  // of a directory, whose names are compared
constexpr size_t kMaxNamed = 3;

using Quote = std::string(std::string_view);

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool IsDirectory(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool IsStore(const fs::path& path) { return Exists(path / "CAIRN"); }
bool IsSafetensors(const fs::path& path) { return path.extension() == ".safetensors"; }

/// Returns the names in a directory of which `is_wanted` is true.
std::vector<std::string> ListNames(const fs::path& folder, bool (*is_wanted)(const fs::path&)) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder.empty() ? "." : folder, error);
  for (size_t i = 0; !error && entry != fs::directory_iterator() && i < kMaxEntries; ++i) {
    if (is_wanted(entry->path())) names.push_back(entry->path().filename().string());
    entry.increment(error);
  }
  std::ranges::sort(names);
  return names;
}

std::string NameStores(const fs::path& folder, Quote* quote) {
  std::vector<std::string> names = ListNames(folder, IsStore);
  if (names.empty()) return "";
  const char* const more = names.size() > kMaxNamed ? ", ..." : "";
  names.resize(std::min(names.size(), kMaxNamed));
  for (std::string& name : names) name = quote((folder / name).string());
  return fmt::format("the stores in that directory: {}{}", fmt::join(names, ", "), more);
}

/// Returns what the path of an error meant, which does not exist.
std::string TextOfMissing(const Error& error, const fs::path& path, const HintTexts& texts,
                          Quote* quote) {
  fs::path first = path;  // the first part that does not exist
  while (first.has_parent_path() && !Exists(first.parent_path())) first = first.parent_path();
  const fs::path folder = first.parent_path();
  if (!folder.empty() && !IsDirectory(folder)) {
    return fmt::format("{} is a file and not a directory", quote(folder.string()));
  }
  const std::string name = first.filename().string();
  auto close = FindCloseName(name, ListNames(folder, IsStore));
  if (!close) close = FindCloseName(name, ListNames(folder, Exists));
  if (close) return fmt::format("did you mean {}?", quote((folder / *close).string()));
  if (first != path) {
    return error.hint == Hint::kMakeDirectory
               ? fmt::format("run mkdir -p {} first", quote(path.parent_path().string()))
               : fmt::format("there is no directory {}", quote(first.string()));
  }
  if (error.hint == Hint::kCreateStore) {
    const std::string stores = NameStores(folder, quote);
    return stores.empty() ? texts.create_store : stores;
  }
  return fmt::format("run ls {} to list what exists",
                     folder.empty() ? "." : quote(folder.string()));
}

/// Returns the arguments with which `kv-admin import` accepts a checkpoint of another format; empty
/// if it is none of these formats.
std::string WhatToImport(const fs::path& path, Quote* quote) {
  const auto has = [&](const char* name) { return Exists(path / name); };
  const std::string word = quote(path.string());
  if (!IsDirectory(path)) {
    constexpr std::string_view kEnds[] = {".safetensors", ".index.json", ".pt",
                                          ".pth",         ".bin",        ".ckpt"};
    const auto ends_with = [&](std::string_view end) { return path.native().ends_with(end); };
    return std::ranges::any_of(kEnds, ends_with) ? word : "";
  }
  if (has(".metadata")) return word;
  if (has("config.json") || has("model_index.json") || has("adapter_config.json")) {
    return word + " --format hf";
  }
  return ListNames(path, IsSafetensors).empty() ? "" : word + "/*.safetensors";
}

/// Returns what a path meant that exists and is not a store.
std::string TextOfOther(const fs::path& path, Quote* quote) {
  for (fs::path at = path.parent_path(); at.has_relative_path(); at = at.parent_path()) {
    if (IsStore(at)) return fmt::format("did you mean {}?", quote(at.string()));
  }
  if (const std::string files = WhatToImport(path, quote); !files.empty()) {
    return fmt::format("run kv-admin import STORE --step N {} to import it", files);
  }
  const std::string stores = IsDirectory(path) ? NameStores(path, quote) : "";
  return stores.empty() ? NameStores(path.parent_path(), quote) : stores;
}

std::string TextOfPath(const Error& error, const HintTexts& texts, Quote* quote) {
  const std::string& file = error.file;
  const std::string creation = error.hint == Hint::kCreateStore ? texts.create_store : "";
  if (file.starts_with("memory:")) {
    return creation.empty()
               ? ""
               : "other processes cannot see it; give the address of a directory or a bucket";
  }
  const bool is_local = !file.empty() && !file.contains("://") && !file.starts_with("rados:");
  if (!is_local) return creation;
  fs::path path = file;
  if (!path.has_filename()) path = path.parent_path();  // "runs/gpt/"
  if (!Exists(path)) return TextOfMissing(error, path, texts, quote);
  return error.hint == Hint::kFindStore ? TextOfOther(path, quote) : creation;
}

}  // namespace

std::string ShellWord(std::string_view text) {
  const bool is_plain = !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) || std::string_view("/._-+:@,=%").contains(c);
  });
  if (is_plain) return std::string(text);
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::string StoreOfObject(const std::string& file) {
  for (const std::string_view object :
       {"/roots/", "/tables/", "/segments/", "/pages/", "/pending/", "/leases/", "/CAIRN"}) {
    if (const size_t at = file.rfind(object); at != std::string::npos) return file.substr(0, at);
  }
  return file;
}

std::string HintText(const Error& error, const HintTexts& texts, const std::string& store,
                     std::string (*quote)(std::string_view)) {
  const std::string word = store.empty() ? "STORE" : quote(store);
  switch (error.hint) {
    case Hint::kStated:
      return "";
    case Hint::kRebuild:
      return fmt::format("run kv-admin rebuild {}", word);
    case Hint::kRebuildTables:
      return fmt::format(
          "run kv-admin rebuild {0} to recover what is left, and then kv-admin pull MIRROR {0} if "
          "a mirror has what is lost",
          word);
    case Hint::kRestoreStore:
      return "restore it from a backup of the store, or run kv-admin pull MIRROR NEW_STORE to copy "
             "the steps of a mirror";
    case Hint::kFetchFile:
      return "the file is damaged or incomplete: get it again from its source";
    case Hint::kCreateStore:
    case Hint::kFindStore:
      return TextOfPath(error, texts, quote);
    case Hint::kOpenForWriting:
      return texts.open_for_writing;
    case Hint::kOverwrite:
      return texts.overwrite;
    case Hint::kListSteps:
      return texts.list_steps;
    case Hint::kListKeys:
      return texts.list_keys;
    case Hint::kMakeDirectory:
    case Hint::kNone:
      break;
  }
  if (error.code == ErrorCode::kDataLoss) {
    return fmt::format(
        "run kv-dump verify {0} to list all damage, and kv-admin repair {0} --from MIRROR to "
        "replace it from a mirror",
        word);
  }
  if (error.code == ErrorCode::kInternal) return "this is a defect of Cairn; please report it";
  const bool is_path = error.code == ErrorCode::kNotFound && !error.step && error.key.empty();
  return is_path ? TextOfPath(error, texts, quote) : "";
}

}  // namespace cairn::core
