// Votes: fixed words, so that nobody needs to ask for a length first.

#include "core/internal/vote.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace cairn::core::internal {
namespace {

// byte 0: 1 if fine; byte 1: the error's code; from 8 on: text, ended by NUL
struct Word {
  static constexpr size_t kTextBytes = 1016;
  std::array<std::byte, kTextBytes + 8> bytes{};

  static Word Fine(std::string_view text) { return Word(true, ErrorCode::kInternal, text); }
  static Word Bad(const Error& error) { return Word(false, error.code, error.ToString()); }
  Word() = default;

  bool fine() const { return bytes[0] != std::byte{0}; }
  ErrorCode code() const {
    return static_cast<ErrorCode>(
        std::min(std::to_integer<int>(bytes[1]), static_cast<int>(ErrorCode::kInternal)));
  }
  std::string text() const {
    const auto* const begin = reinterpret_cast<const char*>(bytes.data() + 8);
    return std::string(begin, ::strnlen(begin, kTextBytes));
  }

 private:
  Word(bool fine, ErrorCode code, std::string_view text) {
    bytes[0] = std::byte{fine};
    bytes[1] = static_cast<std::byte>(code);
    std::memcpy(bytes.data() + 8, text.data(), std::min(text.size(), kTextBytes));
  }
};

}  // namespace

Result<std::string> VoteAndTell(Communicator& communicator, const Result<std::string>& own) {
  const Word word = own ? Word::Fine(*own) : Word::Bad(own.error());
  std::vector<Word> words(static_cast<size_t>(communicator.world_size()));
  std::vector<ByteTarget> targets;
  for (Word& each : words) targets.emplace_back(each.bytes);
  Result<void> gathered = communicator.AllGather(word.bytes, targets);
  if (!own) return own;
  CAIRN_TRY(std::move(gathered));
  for (size_t rank = 0; rank < words.size(); ++rank) {
    if (words[rank].fine()) continue;
    return Fail(words[rank].code(), fmt::format("rank {}: {}", rank, words[rank].text()));
  }
  return words[0].text();
}

Result<void> Vote(Communicator& communicator, const Result<void>& own) {
  const auto told =
      VoteAndTell(communicator, own ? Result<std::string>("")
                                    : Result<std::string>(std::unexpected(own.error())));
  if (!told) return std::unexpected(told.error());
  return {};
}

}  // namespace cairn::core::internal
