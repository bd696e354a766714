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
constexpr size_t kMaxKeptBytes = 128 << 20;  // with the ends
constexpr uint64_t kNamesPerCheck = 4096;

/// Counts a name, and adds it to the result if it matches.
Result<void> Examine(std::string_view fqn, bool is_tensor, const SearchWords& words, size_t limit,
                     const core::Progress& progress, KeySearch::Found& found) {
  if (found.key_count++ % kNamesPerCheck == 0 && progress && !progress(found.key_count, 0)) {
    return Fail(ErrorCode::kCancelled, "stopped on request");
  }
  if (!words.Match(fqn)) return {};
  ++found.matches;
  if (found.keys.size() < limit) found.keys.push_back({std::string(fqn), is_tensor});
  return {};
}

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
  std::shared_ptr<const Names> names;
  {
    const std::scoped_lock lock(mutex_);
    if (names_ == nullptr || !names_->step.HasRecordsOf(step)) {
      names_ = nullptr;
      CAIRN_TRY_ASSIGN(names_, Read(step, words, limit, progress, found));
      return found;
    }
    names = names_;
  }
  size_t begin = 0;
  for (const size_t end : names->ends) {
    const auto fqn = std::string_view(names->text).substr(begin, end / 2 - begin);
    CAIRN_TRY(Examine(fqn, end % 2 == 1, words, limit, progress, found));
    begin = end / 2;
  }
  return found;
}

Result<std::shared_ptr<const KeySearch::Names>> KeySearch::Read(const kv::StepInfo& step,
                                                                const SearchWords& words,
                                                                size_t limit,
                                                                const core::Progress& progress,
                                                                Found& found) const {
  auto names = std::make_shared<Names>();
  names->step = step;
  const auto add = [&](const std::string& fqn, bool is_tensor) -> Result<void> {
    CAIRN_TRY(Examine(fqn, is_tensor, words, limit, progress, found));
    if (names == nullptr) return {};
    names->text += fqn;
    names->ends.push_back(2 * names->text.size() + (is_tensor ? 1 : 0));
    if (names->text.size() + names->ends.size() * sizeof(size_t) > kMaxKeptBytes) names = nullptr;
    return {};
  };
  CAIRN_TRY(store_->ForEachKey(
      step, {},
      [&](const core::TensorInfo& tensor) -> Result<void> {
        return tensor.hidden ? Result<void>() : add(tensor.fqn, true);
      },
      [&](const core::ValueInfo& value) { return add(value.fqn, false); }));
  return names;
}

}  // namespace cairn::tools
