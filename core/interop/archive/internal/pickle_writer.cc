#include "core/interop/archive/internal/pickle_writer.h"

#include <fmt/format.h>

#include <bit>
#include <limits>
#include <utility>

#include "core/interop/archive/internal/pickle_reader.h"
#include "schema/little_endian.h"

namespace cairn::core::internal {

void PickleWriter::Int(int64_t value) {
  if (value >= 0 && value <= 0xff) {
    out_ += 'K';
    schema::AppendLittleEndian(out_, static_cast<uint8_t>(value));
  } else if (value >= std::numeric_limits<int32_t>::min() &&
             value <= std::numeric_limits<int32_t>::max()) {
    out_ += 'J';
    schema::AppendLittleEndian(out_, static_cast<int32_t>(value));
  } else {
    out_ += "\x8a\x08";
    schema::AppendLittleEndian(out_, value);
  }
}

bool PickleWriter::Long(std::span<const std::byte> value) {
  if (value.size() > 0xff) return false;
  out_ += '\x8a';
  schema::AppendLittleEndian(out_, static_cast<uint8_t>(value.size()));
  out_.append(reinterpret_cast<const char*>(value.data()), value.size());
  return true;
}

void PickleWriter::Float(double value) {
  out_ += 'G';
  schema::AppendLittleEndian(out_, std::byteswap(std::bit_cast<uint64_t>(value)));
}

void PickleWriter::Text(std::string_view utf8) {
  CAIRN_CHECK(utf8.size() <= std::numeric_limits<uint32_t>::max());
  out_ += 'X';
  schema::AppendLittleEndian(out_, static_cast<uint32_t>(utf8.size()));
  out_ += utf8;
}

void PickleWriter::Bytes(std::span<const std::byte> value) {
  // Each byte is a code point up to U+00FF, encoded as UTF-8.
  std::string text;
  for (const std::byte byte : value) {
    const auto code = static_cast<uint8_t>(byte);
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else {
      text += static_cast<char>(0xc0 | code >> 6);
      text += static_cast<char>(0x80 | (code & 0x3f));
    }
  }
  Global("_codecs", "encode");
  Mark();
  Text(text);
  Text("latin1");
  Tuple();
  Call();
}

void PickleWriter::Complex(double real, double imaginary) {
  Global("__builtin__", "complex");
  Mark();
  Float(real);
  Float(imaginary);
  Tuple();
  Call();
}

void PickleWriter::Global(std::string_view module, std::string_view name) {
  CAIRN_CHECK(module.find('\n') == module.npos && name.find('\n') == name.npos);
  out_ += 'c';
  out_.append(module).push_back('\n');
  out_.append(name).push_back('\n');
}

uint32_t PickleWriter::Memoize() {
  out_ += 'r';
  schema::AppendLittleEndian(out_, memoized_count_);
  return memoized_count_++;
}

void PickleWriter::Recall(uint32_t number) {
  CAIRN_CHECK(number < memoized_count_);
  out_ += 'j';
  schema::AppendLittleEndian(out_, number);
}

Result<std::string> PickleWriter::Finish() && {
  out_ += '.';
  const auto tree = ReadPickle(std::as_bytes(std::span(out_)));
  if (!tree && tree.error().code != ErrorCode::kResourceExhausted) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the values cannot be pickled: {}", tree.error().message));
  }
  return std::move(out_);
}

}  // namespace cairn::core::internal
