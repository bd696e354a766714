#include "core/state_dict/value.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>

#include "cairn_schema/value_generated.h"
#include "kv/base/record_check.h"
#include "schema/little_endian.h"

namespace cairn::core {
namespace {

constexpr size_t kShownBytes = 64;
static_assert(std::variant_size_v<Value> == static_cast<size_t>(schema::ValueKind::MAX) + 2);

void AppendDouble(std::vector<uint8_t>& out, double value) {
  schema::AppendLittleEndian(out, std::bit_cast<uint64_t>(value));
}

double GetDouble(std::span<const uint8_t> bytes, size_t offset_bytes = 0) {
  return std::bit_cast<double>(
      schema::GetLittleEndian<uint64_t>(std::as_bytes(bytes), offset_bytes));
}

// The contents of a ValueRecord, except for its version.
struct Fields {
  schema::ValueKind kind = schema::ValueKind::Null;
  int64_t integer = 0;
  std::vector<uint8_t> bytes;
  uint64_t chunked_bytes = 0;
};

std::vector<uint8_t> Copy(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  return std::vector<uint8_t>(data, data + bytes.size());
}

struct ToFields {
  Fields operator()(std::monostate) const { return {}; }
  Fields operator()(bool value) const { return {schema::ValueKind::Bool, value ? 1 : 0, {}}; }
  Fields operator()(int64_t value) const { return {schema::ValueKind::Int, value, {}}; }
  Fields operator()(const BigInt& value) const {
    return {schema::ValueKind::BigInt, 0, Copy(value.twos_complement)};
  }
  Fields operator()(double value) const {
    Fields fields{schema::ValueKind::Float, 0, {}};
    AppendDouble(fields.bytes, value);
    return fields;
  }
  Fields operator()(const std::complex<double>& value) const {
    Fields fields{schema::ValueKind::Complex, 0, {}};
    AppendDouble(fields.bytes, value.real());
    AppendDouble(fields.bytes, value.imag());
    return fields;
  }
  Fields operator()(const std::string& value) const {
    return {schema::ValueKind::String, 0, Copy(std::as_bytes(std::span(value)))};
  }
  Fields operator()(const Bytes& value) const {
    return {schema::ValueKind::Bytes, 0, Copy(value.data)};
  }
  Fields operator()(const Pickle& value) const {
    return {schema::ValueKind::Pickle, 0, Copy(value.data)};
  }
  Fields operator()(const ChunkedValue& value) const {
    return {value.kind, 0, {}, value.length_bytes};
  }
};

// Whether the two's complement is in its shortest form: the top byte is not a mere sign extension.
bool IsShortest(std::span<const std::byte> bytes) {
  if (bytes.empty()) return false;
  if (bytes.size() == 1) return true;
  const auto top = static_cast<uint8_t>(bytes[bytes.size() - 1]);
  const bool negative_below = (static_cast<uint8_t>(bytes[bytes.size() - 2]) & 0x80) != 0;
  return !(top == 0x00 && !negative_below) && !(top == 0xff && negative_below);
}

std::unexpected<Error> Damaged(const char* why) {
  return Fail(ErrorCode::kDataLoss, fmt::format("ValueRecord is damaged: {}", why));
}

std::string EscapedText(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, kShownBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\'' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (text.size() <= kShownBytes) return out + "'";
  // Remove an incomplete UTF-8 sequence at the end, which would garble a terminal.
  size_t begin = out.size();
  while (begin > 1 && (static_cast<unsigned char>(out[begin - 1]) & 0xc0) == 0x80) --begin;
  if (begin > 1 && (static_cast<unsigned char>(out[begin - 1]) & 0xc0) == 0xc0) {
    out.resize(begin - 1);
  }
  return out + fmt::format("'... ({} bytes)", text.size());
}

std::string EscapedBytes(std::span<const std::byte> bytes) {
  std::string out = "b'";
  for (const std::byte b : bytes.first(std::min(bytes.size(), kShownBytes))) {
    const auto byte = static_cast<unsigned char>(b);
    if (byte >= 0x20 && byte < 0x7f && byte != '\'' && byte != '\\') {
      out += static_cast<char>(byte);
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  return bytes.size() <= kShownBytes ? out + "'"
                                     : out + fmt::format("'... ({} bytes)", bytes.size());
}

std::string HexOf(const BigInt& value) {
  std::vector<std::byte> magnitude = value.twos_complement;
  const bool negative = !magnitude.empty() && (magnitude.back() & std::byte{0x80}) != std::byte{0};
  if (negative) {
    bool carry = true;
    for (std::byte& b : magnitude) {
      const unsigned sum = (static_cast<unsigned>(~b) & 0xff) + (carry ? 1 : 0);
      b = static_cast<std::byte>(sum & 0xff);
      carry = sum > 0xff;
    }
  }
  std::string digits;
  for (size_t i = magnitude.size(); i-- > 0;) {
    digits += fmt::format("{:02x}", static_cast<unsigned>(magnitude[i]));
  }
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
  if (digits.size() > kShownBytes) {
    digits = digits.substr(0, kShownBytes) + fmt::format("... ({} digits)", digits.size());
  }
  return (negative ? "-0x" : "0x") + digits;
}

std::string FormatDouble(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

struct ToText {
  std::string operator()(std::monostate) const { return "null"; }
  std::string operator()(bool value) const { return value ? "True" : "False"; }
  std::string operator()(int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(const BigInt& value) const { return HexOf(value); }
  std::string operator()(double value) const { return FormatDouble(value); }
  std::string operator()(const std::complex<double>& value) const {
    return fmt::format("({}{:+}j)", value.real(), value.imag());
  }
  std::string operator()(const std::string& value) const { return EscapedText(value); }
  std::string operator()(const Bytes& value) const { return EscapedBytes(value.data); }
  std::string operator()(const Pickle& value) const {
    return fmt::format("<pickle, {} bytes>", value.data.size());
  }
  std::string operator()(const ChunkedValue& value) const {
    return fmt::format("<{}, {} bytes>", TypeName(value), value.length_bytes);
  }
};

}  // namespace

bool IsLong(const Value& value) { return BytesOf(value).size() > kMaxInlineValueBytes; }

std::span<const std::byte> BytesOf(const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return std::as_bytes(std::span(*text));
  if (const auto* big = std::get_if<BigInt>(&value)) return big->twos_complement;
  if (const auto* bytes = std::get_if<Bytes>(&value)) return bytes->data;
  if (const auto* pickle = std::get_if<Pickle>(&value)) return pickle->data;
  return {};
}

namespace {

Result<void> CheckBytes(const Value& value) {
  if (BytesOf(value).size() > kMaxValueBytes) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("a plain value of {} bytes is larger than {}; store it as a tensor",
                            BytesOf(value).size(), kMaxValueBytes));
  }
  if (const auto* big = std::get_if<BigInt>(&value); big && !IsShortest(big->twos_complement)) {
    return Fail(ErrorCode::kInvalidArgument, "a big integer is not in its shortest form");
  }
  return {};
}

}  // namespace

Result<ChunkedValue> WithoutBytes(const Value& value) {
  CAIRN_TRY(CheckBytes(value));
  // The alternatives are in the order of ValueKind.
  return ChunkedValue{.kind = static_cast<schema::ValueKind>(value.index()),
                      .length_bytes = BytesOf(value).size()};
}

Result<Value> WithBytes(const ChunkedValue& value, std::vector<std::byte> bytes) {
  switch (value.kind) {
    case schema::ValueKind::BigInt:
      if (!IsShortest(bytes)) return Damaged("a big integer is not in its shortest form");
      return Value(BigInt{std::move(bytes)});
    case schema::ValueKind::String: {
      const auto* const text = reinterpret_cast<const char*>(bytes.data());
      return Value(std::string(text, bytes.size()));
    }
    case schema::ValueKind::Bytes:
      return Value(Bytes{std::move(bytes)});
    case schema::ValueKind::Pickle:
      return Value(Pickle{std::move(bytes)});
    default:
      return Damaged("a value of this kind has no chunks");
  }
}

Result<std::vector<std::byte>> EncodeValue(const Value& value) {
  CAIRN_TRY(CheckBytes(value));
  const Fields fields = std::visit(ToFields{}, value);
  flatbuffers::FlatBufferBuilder builder(fields.bytes.size() + 64);
  const auto bytes = fields.bytes.empty() ? 0 : builder.CreateVector(fields.bytes);
  builder.Finish(schema::CreateValueRecord(builder, schema::kRecordVersion, fields.kind,
                                           fields.integer, bytes, fields.chunked_bytes),
                 schema::ValueRecordIdentifier());
  const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  std::vector<std::byte> record(data, data + builder.GetSize());
  CAIRN_DCHECK(DecodeValue(record).has_value());
  return record;
}

Result<Value> DecodeValue(std::span<const std::byte> bytes) {
  CAIRN_TRY_ASSIGN(const schema::ValueRecord* record,
                   kv::CheckedRecord<schema::ValueRecord>(bytes, schema::ValueRecordIdentifier(),
                                                          "ValueRecord"));
  std::span<const uint8_t> raw;
  if (record->bytes() != nullptr) raw = {record->bytes()->data(), record->bytes()->size()};
  const std::span<const std::byte> all = std::as_bytes(raw);
  const ChunkedValue chunked{.kind = record->kind(), .length_bytes = record->chunked_bytes()};
  if (chunked.length_bytes > 0 && chunked.kind <= schema::ValueKind::Pickle) {
    if (chunked.length_bytes > kMaxValueBytes || !raw.empty() ||
        (chunked.kind != schema::ValueKind::BigInt && chunked.kind < schema::ValueKind::String)) {
      return Damaged("its chunks have too many bytes, or it has none");
    }
    return Value(chunked);
  }
  switch (record->kind()) {
    case schema::ValueKind::Null:
      return Value(std::monostate{});
    case schema::ValueKind::Bool:
      if (record->integer() != 0 && record->integer() != 1)
        return Damaged("a bool is neither 0 nor 1");
      return Value(record->integer() == 1);
    case schema::ValueKind::Int:
      return Value(int64_t{record->integer()});
    case schema::ValueKind::Float:
      if (raw.size() != 8) return Damaged("a float does not have 8 bytes");
      return Value(GetDouble(raw));
    case schema::ValueKind::Complex:
      if (raw.size() != 16) return Damaged("a complex number does not have 16 bytes");
      return Value(std::complex<double>(GetDouble(raw), GetDouble(raw, 8)));
    case schema::ValueKind::BigInt:
    case schema::ValueKind::String:
    case schema::ValueKind::Bytes:
    case schema::ValueKind::Pickle:
      return WithBytes(chunked, {all.begin(), all.end()});
  }
  return Fail(ErrorCode::kUnimplemented,
              fmt::format("value kind {} is unknown to this version; upgrade to read it",
                          static_cast<int>(record->kind())));
}

const char* TypeName(const Value& value) {
  static constexpr std::array kNames = {"None",    "bool", "int",   "int",   "float",
                                        "complex", "str",  "bytes", "pickle"};
  const auto* const chunked = std::get_if<ChunkedValue>(&value);
  return kNames[chunked != nullptr ? static_cast<size_t>(chunked->kind) : value.index()];
}

std::string FormatValue(const Value& value) { return std::visit(ToText{}, value); }

}  // namespace cairn::core
