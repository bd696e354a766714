#pragma once
/// How cairn_make_fuzz_corpus composes inputs, and where it writes them.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kv/base/error.h"

namespace cairn::fuzz {

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
inline std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Ends the program with the error.
template <typename T>
T Must(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "make_corpus: %s\n", result.error().ToString().c_str());
    std::exit(2);
  }
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

/// Concatenates the parts of an input.
class Builder {
 public:
  Builder() = default;
  explicit Builder(uint8_t selector) { Byte(selector); }
  Builder& Byte(uint8_t value) {
    text_.push_back(static_cast<char>(value));
    return *this;
  }
  template <typename T>
  Builder& Number(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) Byte(static_cast<uint8_t>(value >> (8 * i)));
    return *this;
  }
  Builder& Add(std::span<const std::byte> bytes) {
    text_ += AsText(bytes);
    return *this;
  }
  Builder& Add(std::string_view text) {
    text_ += text;
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class Corpus {
 public:
  explicit Corpus(std::filesystem::path folder) : folder_(std::move(folder)) {}
  /// Adds an input. Of equal names, the first `kMaxPerName` are kept.
  void Add(const std::string& fuzzer, const std::string& name, const Builder& input) {
    constexpr int kMaxPerName = 3;
    const int number = count_[fuzzer + "/" + name]++;
    if (number >= kMaxPerName) return;
    std::filesystem::create_directories(folder_ / fuzzer);
    std::ofstream file(
        folder_ / fuzzer / (number == 0 ? name : name + "-" + std::to_string(number + 1)),
        std::ios::binary);
    file << input.text();
    if (!file.flush()) {
      std::fprintf(stderr, "make_corpus: cannot write to %s\n", folder_.c_str());
      std::exit(2);
    }
  }

 private:
  const std::filesystem::path folder_;
  std::map<std::string, int> count_;
};

}  // namespace cairn::fuzz
