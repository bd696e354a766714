// Parsing without a document tree: the only values kept are those that the format has.

#include "core/interop/safetensors/internal/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "core/interop/archive/internal/little_endian.h"
#include "core/step/internal/records.h"

namespace cairn::core::internal {
namespace {

struct Name {
  std::string_view name;
  DType dtype;
};
constexpr std::array kNames = {
    Name{"BOOL", DType::kBool},
    Name{"U8", DType::kUInt8},
    Name{"I8", DType::kInt8},
    Name{"U16", DType::kUInt16},
    Name{"I16", DType::kInt16},
    Name{"U32", DType::kUInt32},
    Name{"I32", DType::kInt32},
    Name{"U64", DType::kUInt64},
    Name{"I64", DType::kInt64},
    Name{"F16", DType::kFloat16},
    Name{"BF16", DType::kBFloat16},
    Name{"F32", DType::kFloat32},
    Name{"F64", DType::kFloat64},
    Name{"C64", DType::kComplex64},
    Name{"F8_E4M3", DType::kFloat8E4M3FN},
    Name{"F8_E4M3FNUZ", DType::kFloat8E4M3FNUZ},
    Name{"F8_E5M2", DType::kFloat8E5M2},
    Name{"F8_E5M2FNUZ", DType::kFloat8E5M2FNUZ},
    Name{"F8_E8M0", DType::kFloat8E8M0FNU},
    Name{"F4", DType::kFloat4E2M1FNx2},
};

std::unexpected<Error> Damaged(std::string message) {
  return Fail(ErrorCode::kDataLoss, std::move(message));
}

// One tensor as the header says it, unchecked.
struct RawTensor {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> data_offsets;
};

// Follows the parser's events through the one structure that a header may have. Every event that
// does not fit ends the parsing, so that hostile nesting never builds anything up.
class Handler : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<RawTensor> tensors;
  std::map<std::string, std::string> metadata;
  std::string problem;

  bool null() override { return Stop("a null"); }
  bool boolean(bool) override { return Stop("a boolean"); }
  bool number_integer(number_integer_t) override { return Stop("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Stop("a fraction, or a number too large");
  }
  bool binary(binary_t&) override { return Stop("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (!numbers_) return Stop("a number in an unexpected place");
    numbers_->push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadata) {
      return metadata.emplace(key_, value).second || Stop("a metadata key twice");
    }
    if (state_ != State::kTensor || key_ != "dtype" || numbers_) {
      return Stop("a string in an unexpected place");
    }
    if (tensors.back().dtype) return Stop("a dtype twice");
    tensors.back().dtype = value;
    return true;
  }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kOutside:
        state_ = State::kTop;
        return true;
      case State::kTop:
        if (key_ == "__metadata__") {
          state_ = State::kMetadata;
        } else {
          state_ = State::kTensor;
          tensors.push_back({.name = key_});
        }
        return true;
      default:
        return Stop("an object in an unexpected place");
    }
  }

  bool end_object() override {
    if (state_ == State::kTensor) {
      const RawTensor& tensor = tensors.back();
      if (!tensor.dtype || !tensor.shape || !tensor.data_offsets) {
        return Stop(fmt::format("tensor '{}' without dtype, shape or data_offsets", tensor.name));
      }
    }
    state_ = state_ == State::kTop ? State::kDone : State::kTop;
    return true;
  }

  bool key(string_t& value) override {
    if (state_ == State::kTop && !names_.insert(value).second) {
      return Stop(fmt::format("the name '{}' twice", value));
    }
    key_ = value;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ != State::kTensor || numbers_) return Stop("a list in an unexpected place");
    std::optional<std::vector<uint64_t>>* list = nullptr;
    if (key_ == "shape") list = &tensors.back().shape;
    if (key_ == "data_offsets") list = &tensors.back().data_offsets;
    if (list == nullptr || list->has_value()) return Stop("a list in an unexpected place");
    numbers_ = &list->emplace();
    return true;
  }

  bool end_array() override {
    numbers_ = nullptr;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    problem = fmt::format("the header is no JSON from byte {} on", position);
    return false;
  }

 private:
  enum class State { kOutside, kTop, kMetadata, kTensor, kDone };

  bool Stop(std::string what) {
    problem = "the header holds " + std::move(what);
    return false;
  }

  State state_ = State::kOutside;
  std::string key_;
  std::unordered_set<std::string> names_;
  std::vector<uint64_t>* numbers_ = nullptr;
};

Result<SafetensorsHeader::Tensor> Check(RawTensor raw, uint64_t data_bytes) {
  SafetensorsHeader::Tensor tensor{.name = std::move(raw.name)};
  const auto damaged = [&](std::string why) {
    return Damaged(fmt::format("tensor '{}': {}", tensor.name, why));
  };
  const auto dtype = FindSafetensorsDType(*raw.dtype);
  if (!dtype) {
    return Fail(ErrorCode::kUnimplemented,
                fmt::format("tensor '{}' has dtype '{}', which this version does not know",
                            tensor.name, *raw.dtype));
  }
  tensor.dtype = *dtype;
  tensor.shape = *std::move(raw.shape);
  if (*dtype == DType::kFloat4E2M1FNx2) {
    if (tensor.shape.empty() || tensor.shape.back() % 2 != 0) {
      return damaged("4-bit elements that do not fill whole bytes");
    }
    tensor.shape.back() /= 2;
  }
  if (raw.data_offsets->size() != 2) return damaged("data_offsets are not two numbers");
  tensor.begin_bytes = raw.data_offsets->front();
  tensor.end_bytes = raw.data_offsets->back();
  if (tensor.begin_bytes > tensor.end_bytes || tensor.end_bytes > data_bytes) {
    return damaged(fmt::format("bytes [{}, {}) lead out of the file's {}", tensor.begin_bytes,
                               tensor.end_bytes, data_bytes));
  }
  const auto nbytes = TensorBytes(tensor.dtype, tensor.shape);
  if (!nbytes || *nbytes != tensor.end_bytes - tensor.begin_bytes) {
    return damaged(fmt::format("{} bytes do not agree with {} of shape {}",
                               tensor.end_bytes - tensor.begin_bytes, *raw.dtype,
                               FormatNumbers(tensor.shape)));
  }
  return tensor;
}

}  // namespace

Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, uint64_t data_bytes) {
  if (!json.starts_with('{')) return Damaged("the header does not begin with '{'");
  Handler handler;
  const bool parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &handler);
  if (!parsed) return Damaged(handler.problem);
  SafetensorsHeader header{.metadata = std::move(handler.metadata)};
  for (RawTensor& raw : handler.tensors) {
    CAIRN_TRY_ASSIGN(auto tensor, Check(std::move(raw), data_bytes));
    header.tensors.push_back(std::move(tensor));
  }
  std::ranges::sort(header.tensors, {}, [](const SafetensorsHeader::Tensor& tensor) {
    return std::tuple(tensor.begin_bytes, tensor.end_bytes, tensor.name);
  });
  uint64_t end = 0;
  for (const auto& tensor : header.tensors) {
    if (tensor.begin_bytes != end) {
      return Damaged(fmt::format("tensor '{}' begins at byte {} where {} was expected: {}",
                                 tensor.name, tensor.begin_bytes, end,
                                 tensor.begin_bytes < end ? "tensors overlap" : "there is a hole"));
    }
    end = tensor.end_bytes;
  }
  if (end != data_bytes) {
    return Damaged(fmt::format("tensors end at byte {} of {}", end, data_bytes));
  }
  return header;
}

Result<std::string> FormatSafetensorsHeader(std::span<const SafetensorsWriter::Entry> entries,
                                            const std::map<std::string, std::string>& metadata,
                                            uint64_t* data_bytes) {
  const auto quoted = [](const std::string& text) {
    // Lone surrogates and other bytes that are no UTF-8 have no place in JSON.
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::strict);
  };
  std::unordered_set<std::string_view> names;
  std::string json = "{";
  uint64_t offset = 0;
  try {
    if (!metadata.empty()) {
      json += "\"__metadata__\":{";
      for (const auto& [key, value] : metadata) json += quoted(key) + ":" + quoted(value) + ",";
      json.back() = '}';
      json += ',';
    }
    for (const SafetensorsWriter::Entry& entry : entries) {
      const auto invalid = [&](std::string why) {
        return Fail(Error{
            .code = ErrorCode::kInvalidArgument, .message = std::move(why), .key = entry.name});
      };
      const auto name = SafetensorsName(entry.dtype);
      if (!name) {
        return invalid(
            fmt::format("safetensors files cannot hold {}; leave the key out or convert it",
                        schema::DTypeName(entry.dtype)));
      }
      if (entry.name == "__metadata__" || !names.insert(entry.name).second) {
        return invalid("this name cannot stand in a safetensors file, or stands there already");
      }
      Shape shape = entry.shape;
      CAIRN_TRY_ASSIGN(const uint64_t nbytes, TensorBytes(entry.dtype, shape));
      if (entry.dtype == DType::kFloat4E2M1FNx2) {
        if (shape.empty()) return invalid("safetensors files cannot hold a scalar of 4-bit floats");
        shape.back() *= 2;
      }
      std::string numbers = FormatNumbers(shape);
      std::erase(numbers, ' ');
      json += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}},",
                          quoted(entry.name), *name, numbers, offset, offset + nbytes);
      if (__builtin_add_overflow(offset, nbytes, &offset)) return invalid("too many bytes in all");
    }
  } catch (const nlohmann::json::exception&) {
    return Fail(ErrorCode::kInvalidArgument,
                "a key is no valid UTF-8; safetensors files cannot hold it");
  }
  if (json.back() == ',') json.pop_back();
  json += '}';
  while (json.size() % 8 != 0) json += ' ';
  if (json.size() > kMaxSafetensorsHeaderBytes) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("the header would have {} bytes, the format allows {}; export fewer keys",
                    json.size(), kMaxSafetensorsHeaderBytes));
  }
  *data_bytes = offset;
  return json;
}

Result<SafetensorsContents> ReadSafetensors(std::span<const std::byte> file) {
  if (file.size() < 8) {
    return Fail(ErrorCode::kDataLoss, "it is no safetensors file: too short, or no file at all");
  }
  const auto header_bytes = ReadLittle<uint64_t>(file);
  if (header_bytes > kMaxSafetensorsHeaderBytes || header_bytes > file.size() - 8) {
    return Fail(ErrorCode::kDataLoss,
                fmt::format("it is no safetensors file: a header of {} bytes in a file of {}",
                            header_bytes, file.size()));
  }
  const auto text = file.subspan(8, header_bytes);
  const auto data = file.subspan(8 + header_bytes);
  CAIRN_TRY_ASSIGN(SafetensorsHeader header,
                   ParseSafetensorsHeader({reinterpret_cast<const char*>(text.data()), text.size()},
                                          data.size()));
  SafetensorsContents contents{.tensors = {}, .metadata = std::move(header.metadata)};
  for (auto& tensor : header.tensors) {
    contents.tensors.push_back(
        {.name = std::move(tensor.name),
         .dtype = tensor.dtype,
         .shape = std::move(tensor.shape),
         .bytes = data.subspan(tensor.begin_bytes, tensor.end_bytes - tensor.begin_bytes)});
  }
  return contents;
}

}  // namespace cairn::core::internal

namespace cairn::core {

std::optional<std::string_view> SafetensorsName(DType dtype) {
  const auto* found = std::ranges::find(internal::kNames, dtype, &internal::Name::dtype);
  if (found == internal::kNames.end()) return std::nullopt;
  return found->name;
}

std::optional<DType> FindSafetensorsDType(std::string_view name) {
  const auto* found = std::ranges::find(internal::kNames, name, &internal::Name::name);
  if (found == internal::kNames.end()) return std::nullopt;
  return found->dtype;
}

}  // namespace cairn::core
