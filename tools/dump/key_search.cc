// Finds keys of a step by parts of their names.

#include "tools/dump/key_search.h"

#include <algorithm>
#include <utility>

#include "core/step/contents.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

constexpr size_t kMaxQueryBytes = 1 << 10;
constexpr size_t kMaxWords = 32;
constexpr size_t kMaxKeptBytes = 128 << 20;  // of names and what belongs to them
constexpr uint64_t kNamesPerCheck = 4096;

}  // namespace

Result<SearchWords> SearchWords::Parse(std::string_view query) {
  if (query.size() > kMaxQueryBytes) {
    return Fail(ErrorCode::kInvalidArgument, "the words to search for have more than 1 KiB");
  }
  SearchWords result;
  std::string word;
  const auto add = [&] {
    if (!word.empty() && std::ranges::count(result.words_, word) == 0) {
      result.words_.push_back(word);
    }
    word.clear();
  };
  for (const char letter : query) {
    if (letter == ' ' || letter == '\t') {
      add();
    } else {
      word += LowerAscii(letter);
    }
  }
  add();
  if (result.words_.size() > kMaxWords) {
    return Fail(ErrorCode::kInvalidArgument, "there are more than 32 words to search for");
  }
  return result;
}

bool SearchWords::Match(std::string_view name) const {
  return std::ranges::all_of(words_, [&](const std::string& word) {
    const auto equal = [](char a, char b) { return LowerAscii(a) == b; };
    return word.size() <= name.size() &&
           std::ranges::search(name, word, equal).begin() != name.end();
  });
}

Result<KeySearch::Found> KeySearch::Find(const kv::StepInfo& step, const SearchWords& words,
                                         size_t limit, const core::Progress& progress) {
  Found found;
  const auto examine = [&](const Key& key) -> Result<void> {
    if (found.key_count++ % kNamesPerCheck == 0 && progress && !progress(found.key_count, 0)) {
      return Fail(ErrorCode::kCancelled, "stopped on request");
    }
    if (!words.Match(key.fqn)) return {};
    ++found.matches;
    if (found.keys.size() < limit) found.keys.push_back(key);
    return {};
  };
  std::unique_lock lock(mutex_);
  if (names_ != nullptr && names_->step.HasRecordsOf(step)) {
    const std::shared_ptr<const Names> names = names_;
    lock.unlock();
    for (const Key& key : names->keys) CAIRN_TRY(examine(key));
    return found;
  }
  names_ = nullptr;
  auto names = std::make_shared<Names>(Names{.step = step});
  size_t kept_bytes = 0;
  const auto add = [&](Key key) -> Result<void> {
    CAIRN_TRY(examine(key));
    kept_bytes += sizeof(Key) + key.fqn.size();
    if (kept_bytes > kMaxKeptBytes) names = nullptr;
    if (names != nullptr) names->keys.push_back(std::move(key));
    return {};
  };
  CAIRN_TRY(store_->ForEachKey(
      step, {},
      [&](const core::TensorInfo& tensor) {
        return tensor.hidden ? Result<void>() : add({tensor.fqn, /*is_tensor=*/true});
      },
      [&](const core::ValueInfo& value) { return add({value.fqn, /*is_tensor=*/false}); }));
  names_ = std::move(names);
  return found;
}

}  // namespace cairn::tools
