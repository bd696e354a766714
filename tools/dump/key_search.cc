// Finds keys of a step by parts of their names.

#include "tools/dump/key_search.h"

#include <algorithm>

#include "core/step/contents.h"

namespace cairn::tools {
namespace {

constexpr size_t kMaxKeptBytes = 128 << 20;  // with the ends

char LowerCase(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

}  // namespace

SearchWords::SearchWords(std::string_view query) {
  std::string word;
  for (const char letter : query) {
    if (letter != ' ' && letter != '\t') {
      word += LowerCase(letter);
    } else if (!word.empty()) {
      words_.push_back(std::exchange(word, {}));
    }
  }
  if (!word.empty()) words_.push_back(std::move(word));
}

bool SearchWords::Match(std::string_view name) const {
  return std::ranges::all_of(words_, [&](const std::string& word) {
    const auto equal = [](char a, char b) { return LowerCase(a) == b; };
    return std::ranges::search(name, word, equal).begin() != name.end();
  });
}

Result<KeySearch::Found> KeySearch::Find(const kv::StepInfo& step, const SearchWords& words,
                                         size_t limit) {
  Found found;
  const std::scoped_lock lock(mutex_);
  CAIRN_TRY(ForEachName(step, [&](std::string_view fqn, bool is_tensor) {
    ++found.key_count;
    if (!words.Match(fqn)) return;
    ++found.matches;
    if (found.keys.size() < limit) found.keys.push_back({std::string(fqn), is_tensor});
  }));
  return found;
}

Result<void> KeySearch::ForEachName(const kv::StepInfo& step, const Visit& visit) {
  if (has_names_ && step_.HasRecordsOf(step)) {
    size_t begin = 0;
    for (const size_t end : ends_) {
      visit(std::string_view(text_).substr(begin, end / 2 - begin), end % 2 == 1);
      begin = end / 2;
    }
    return {};
  }
  has_names_ = false;
  text_.clear();
  ends_.clear();
  bool fits = true;
  const auto add = [&](const std::string& fqn, bool is_tensor) -> Result<void> {
    visit(fqn, is_tensor);
    fits = fits && text_.size() + fqn.size() + ends_.size() * sizeof(size_t) < kMaxKeptBytes;
    if (!fits) return {};
    text_ += fqn;
    ends_.push_back(2 * text_.size() + (is_tensor ? 1 : 0));
    return {};
  };
  CAIRN_TRY(store_->ForEachKey(
      step,
      [&](const core::TensorInfo& tensor) -> Result<void> {
        return tensor.hidden ? Result<void>() : add(tensor.fqn, true);
      },
      [&](const core::ValueInfo& value) { return add(value.fqn, false); }));
  step_ = step;
  has_names_ = fits;
  if (!fits) {
    text_ = {};
    ends_ = {};
  }
  return {};
}

}  // namespace cairn::tools
