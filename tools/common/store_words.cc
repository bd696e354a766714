// The names in a store: steps, tags, and the beginnings of keys.

#include "tools/common/store_words.h"

#include <fmt/format.h>

#include <memory>

#include "core/checkpoint_store.h"
#include "kv/base/key.h"
#include "kv/read/snapshot.h"
#include "kv/storage/open/open_storage.h"
#include "tools/common/address.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

constexpr size_t kMaxSteps = 200;
constexpr size_t kMaxKeys = 500;

/// Returns null if the store is not in a directory or cannot be opened.
std::unique_ptr<core::CheckpointStore> OpenLocal(const std::string& store) {
  const auto storage = kv::OpenStorage(store);  // sends no request
  if (!storage || (*storage)->local_files() == nullptr) return nullptr;
  auto opened = core::CheckpointStore::Open(store, kv::OpenMode::kRead, {});
  return opened ? *std::move(opened) : nullptr;
}

/// Returns an FQN up to the "." that ends the path element in which `typed` ends.
std::string UpToNextElement(std::string_view fqn, std::string_view typed) {
  const size_t end = fqn.find('.', typed.size());
  return std::string(end == std::string_view::npos ? fqn : fqn.substr(0, end + 1));
}

}  // namespace

std::string StoreOf(const std::string& address) {
  auto parsed = ParseAddress(address);
  return parsed ? std::move(parsed->store) : std::string();
}

std::vector<StoreWord> StepWords(const std::string& store) {
  const auto opened = OpenLocal(store);
  if (opened == nullptr) return {};
  const auto snapshot = opened->kv().Latest();
  if (!snapshot) return {};
  std::vector<StoreWord> words;
  const auto steps = (*snapshot)->Steps();
  if (steps) {
    for (auto step = steps->rbegin(); step != steps->rend() && words.size() < kMaxSteps; ++step) {
      words.push_back(
          {.word = fmt::format("{}", step->step), .help = HumanBytes(step->logical_bytes)});
    }
  }
  for (const auto& [tag, step] : (*snapshot)->tags()) {
    words.push_back({.word = tag, .help = fmt::format("tag of step {}", step)});
  }
  return words;
}

std::vector<StoreWord> KeyWords(const std::string& address, std::string_view typed) {
  const auto parsed = ParseAddress(address);
  if (!parsed) return {};
  const auto opened = OpenLocal(parsed->store);
  if (opened == nullptr) return {};
  const auto snapshot = opened->kv().Latest();
  if (!snapshot) return {};
  const auto step = (*snapshot)->FindStep(parsed->step);
  if (!step) return {};
  std::vector<StoreWord> words;
  for (const kv::Column column : {kv::Column::kTensors, kv::Column::kValues}) {
    std::string last;
    (void)(*snapshot)->Scan(column, *step, typed,
                            [&](std::string_view key, std::span<const std::byte>) -> Result<bool> {
                              CAIRN_TRY_ASSIGN(const kv::ParsedKey fqn, kv::ParseKey(key));
                              std::string word = UpToNextElement(fqn.fqn, typed);
                              if (word == last) return true;
                              last = word;
                              words.push_back({.word = std::move(word), .help = ""});
                              return words.size() < kMaxKeys;
                            });
  }
  return words;
}

}  // namespace cairn::tools
