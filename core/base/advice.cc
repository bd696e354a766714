// What a user can try after an error: what damage of a store needs, and what a wrong path meant.

#include "core/base/advice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "core/base/close_name.h"

namespace cairn::core {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxEntries = 1'000;  // of a directory, whose names are compared
constexpr size_t kMaxNamed = 3;

bool IsLocal(std::string_view file) {
  return !file.empty() && !file.contains("://") && !file.starts_with("rados:") &&
         !file.starts_with("memory:");
}

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool IsDirectory(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool IsStore(const fs::path& path) { return Exists(path / "CAIRN"); }

/// The part of a store that an error concerns.
struct StoreObject {
  std::string store;   // its address
  std::string folder;  // of the object, such as "tables"; the name of the object if it has none
};

/// Finds the store from the path of one of its objects, or from its own path.
std::optional<StoreObject> FindStoreObject(const std::string& file) {
  const auto parent_of = [](const std::string& path) {
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? std::string(".") : path.substr(0, slash);
  };
  const auto name_of = [](const std::string& path) { return path.substr(path.rfind('/') + 1); };
  const std::string folder = parent_of(file), name = name_of(file);
  for (const std::string_view known : {"roots", "tables", "segments", "pages"}) {
    if (name_of(folder) == known && folder != known)
      return StoreObject{parent_of(folder), name_of(folder)};
  }
  if (name == "CAIRN") return StoreObject{folder, name};
  // The path of the store itself.
  const bool is_store = IsLocal(file) ? IsDirectory(fs::path(file) / "roots") : !file.empty();
  if (is_store) return StoreObject{file, "roots"};
  return std::nullopt;
}

class Adviser {
 public:
  Adviser(const Error& error, const AdviceContext& context) : error_(error), context_(context) {}

  std::string Advise() const {
    // The layer that has created the error knew more.
    if (error_.message.contains("kv-admin ") || error_.message.contains("kv-dump ")) return "";
    if (error_.code == ErrorCode::kDataLoss) return AdviseRepair(FindStoreObject(error_.file));
    if (error_.code == ErrorCode::kInternal) return "this is a defect of Cairn; please report it";
    if (error_.step || !error_.key.empty() || error_.file.empty()) return "";
    if (error_.code == ErrorCode::kNotFound) {
      if (!IsLocal(error_.file)) return AdviseCreation();
      return Exists(error_.file) ? AdviseEmpty() : AdviseMissing();
    }
    if (error_.code == ErrorCode::kInvalidArgument && Exists(error_.file)) return AdviseOther();
    return "";
  }

 private:
  bool IsStoreItself(const StoreObject& object) const {
    return object.store == error_.file || object.folder == "CAIRN";
  }

  std::string Quoted(std::string_view text) const {
    if (context_.quote != nullptr) return context_.quote(text);
    const bool is_plain = std::ranges::all_of(text, [](char c) {
      return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') ||
             std::string_view("/._-@:+=%").contains(c);
    });
    if (is_plain) return std::string(text);
    std::string quoted = "'";
    for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return quoted + "'";
  }

  std::string AdviseRepair(const std::optional<StoreObject>& object) const {
    if (!object && !error_.file.empty()) {
      return "the file is damaged or incomplete: get it again from its source";
    }
    std::string store = "STORE";
    if (!context_.store.empty()) {
      store = Quoted(context_.store);
    } else if (object && IsLocal(object->store)) {
      store = Quoted(object->store);
    }
    const bool is_of_step = error_.step.has_value() || !error_.key.empty();
    std::string folder = object ? object->folder : "";
    if (object && IsStoreItself(*object) && is_of_step) folder.clear();
    if (folder == "CAIRN") {
      return "restore this file from a backup of the store, or run kv-admin pull MIRROR NEW_STORE "
             "to copy the steps of a mirror";
    }
    if (folder == "roots") return fmt::format("run kv-admin rebuild {}", store);
    if (folder == "tables" || folder == "pages") {
      return fmt::format(
          "run kv-admin rebuild {0} to recover what is left, and then kv-admin pull MIRROR {0} if "
          "a mirror has what is lost",
          store);
    }
    return fmt::format(
        "run kv-dump verify {0} to list all damage, and kv-admin repair {0} --from MIRROR to "
        "replace it from a mirror",
        store);
  }

  /// Returns the names in a directory of which `is_wanted` is true.
  template <typename Predicate>
  std::vector<std::string> ListNames(const fs::path& folder, Predicate is_wanted) const {
    std::vector<std::string> names;
    std::error_code error;
    size_t count = 0;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
      if (++count > kMaxEntries) break;
      if (is_wanted(entry->path())) names.push_back(entry->path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }

  /// Returns a path in the way in which the user wrote the path of the error.
  static std::string Join(const fs::path& folder, const std::string& name) {
    return folder.empty() ? name : (folder / name).string();
  }

  std::string AdviseMissing() const {
    const fs::path path = TrimSlash(error_.file);
    fs::path first = path;  // the first part that does not exist
    while (!first.parent_path().empty() && !Exists(first.parent_path()))
      first = first.parent_path();
    const fs::path folder = first.parent_path();
    if (!folder.empty() && !IsDirectory(folder)) {
      return fmt::format("{} is a file and not a directory", Quoted(folder.string()));
    }
    if (const auto close = CloseTo(first)) return fmt::format("did you mean {}?", Quoted(*close));
    if (first != path) {
      // What would be created there needs its directory; what is read there does not exist.
      const fs::path needed = path.parent_path();
      return error_.message.starts_with("cannot create")
                 ? fmt::format("run mkdir -p {} first", Quoted(needed.string()))
                 : fmt::format("there is no directory {}", Quoted(first.string()));
    }
    if (NeedsStore()) {
      const std::string stores = NameStores(folder);
      return stores.empty() ? AdviseCreation() : stores;
    }
    const auto like_it = ListNames(folder.empty() ? "." : folder, [&](const fs::path& entry) {
      return path.has_extension() && entry.extension() == path.extension();
    });
    if (!like_it.empty()) return NameSome(path.extension().string() + " files", folder, like_it);
    return fmt::format("run ls {} to list what exists",
                       Quoted(folder.empty() ? "." : folder.string()));
  }

  /// Whether the error is that of opening a store.
  bool NeedsStore() const { return error_.message.contains("store"); }

  std::string AdviseCreation() const {
    if (!NeedsStore()) return "";
    if (error_.file.starts_with("memory:")) {
      return "other processes cannot see it; give the address of a directory or a bucket";
    }
    return context_.is_python ? "mode=\"a\" creates one"
                              : "kv-admin import and kv-admin push create stores";
  }

  /// For an empty directory.
  std::string AdviseEmpty() const {
    const fs::path path = TrimSlash(error_.file);
    return IsDirectory(path) && !IsStore(path) ? AdviseCreation() : "";
  }

  static fs::path TrimSlash(std::string text) {
    while (text.size() > 1 && text.ends_with('/')) text.pop_back();
    return text;
  }

  /// Returns an existing path with the same directory and almost the same name; a store if there is
  /// one.
  std::optional<std::string> CloseTo(const fs::path& path) const {
    const fs::path folder = path.parent_path();
    const fs::path listed = folder.empty() ? "." : folder;
    const std::string name = path.filename().string();
    const auto stores = ListNames(listed, IsStore);
    auto close = FindCloseName(name, stores);
    if (!close) {
      close = FindCloseName(name, ListNames(listed, [](const fs::path&) { return true; }));
    }
    if (!close) return std::nullopt;
    return Join(folder, *close);
  }

  /// Names the stores in a directory; empty if there are none.
  std::string NameStores(const fs::path& folder) const {
    const auto names = ListNames(folder.empty() ? "." : folder, IsStore);
    return names.empty() ? "" : NameSome("stores", folder, names);
  }

  std::string NameSome(const std::string& kind, const fs::path& folder,
                       std::vector<std::string> names) const {
    const bool has_more = names.size() > kMaxNamed;
    names.resize(std::min(names.size(), kMaxNamed));
    for (std::string& name : names) name = Quoted(Join(folder, name));
    return fmt::format("the {} in that directory: {}{}", kind, fmt::join(names, ", "),
                       has_more ? ", ..." : "");
  }

  /// For a path that exists and is not what is needed.
  std::string AdviseOther() const {
    const fs::path path = TrimSlash(error_.file);
    for (fs::path above = path.parent_path(); !above.empty(); above = above.parent_path()) {
      if (IsStore(above)) return fmt::format("did you mean {}?", Quoted(above.string()));
      if (above == above.parent_path()) break;
    }
    if (const std::string files = WhatToImport(path); !files.empty()) {
      return fmt::format("run kv-admin import STORE --step N {} to import it", files);
    }
    if (IsStore(path)) return "";
    if (!IsDirectory(path)) return NeedsStore() ? NameStores(path.parent_path()) : "";
    if (Exists(path / "_CHECKPOINT_METADATA") || Exists(path / "_METADATA")) {
      return fmt::format("cairn.jax.import_orbax('{}', STORE, N) imports it", path.string());
    }
    if (Exists(path / "latest") || Exists(path / "mp_rank_00_model_states.pt")) {
      return fmt::format(
          "cairn.trainers.deepspeed_import.import_checkpoint('{}', STORE, N) imports it",
          path.string());
    }
    if (std::string stores = NameStores(path); !stores.empty()) return stores;
    return NeedsStore() ? NameStores(path.parent_path()) : "";
  }

  /// Returns the arguments with which `kv-admin import` accepts a checkpoint of another format;
  /// empty if it is none of these formats.
  std::string WhatToImport(const fs::path& path) const {
    const std::string name = path.filename().string();
    if (!IsDirectory(path)) {
      if (!NeedsStore()) return "";
      for (const std::string_view end :
           {".safetensors", ".index.json", ".pt", ".pth", ".bin", ".ckpt"}) {
        if (name.ends_with(end)) return Quoted(path.string());
      }
      return "";
    }
    if (Exists(path / ".metadata")) return Quoted(path.string());
    const auto weights =
        ListNames(path, [](const fs::path& entry) { return entry.extension() == ".safetensors"; });
    for (const std::string_view described :
         {"config.json", "model_index.json", "adapter_config.json"}) {
      const bool has_weights = !weights.empty() || described == "model_index.json";
      if (has_weights && Exists(path / described)) return Quoted(path.string()) + " --format hf";
    }
    if (weights.empty()) return "";
    for (const std::string& index : weights) {
      if (Exists(path / (index + ".index.json")))
        return Quoted((path / (index + ".index.json")).string());
    }
    return weights.size() == 1 ? Quoted((path / weights.front()).string())
                               : Quoted(path.string()) + "/*.safetensors";
  }

  const Error& error_;
  const AdviceContext& context_;
};

}  // namespace

std::string Advise(const Error& error, const AdviceContext& context) {
  return Adviser(error, context).Advise();
}

}  // namespace cairn::core
