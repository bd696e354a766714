#pragma once
/// Where a rados: store is, and how it is reached.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "kv/base/error.h"

namespace cairn::kv::internal {

struct RadosSettings {
  std::string address;  // "rados:POOL/NAMESPACE"
  std::string pool;
  std::string name_space;
  std::string conf;       // absolute path of the configuration; if empty, the usual ones of Ceph
  std::string id;         // user without "client."; if empty, from CEPH_ARGS or "admin"
  std::string data_pool;  // pool of stripes; if empty, `pool`
  uint64_t stripe_bytes = 16 << 20;
  /// Timeout of connections, and of requests unless the configuration has rados_osd_op_timeout.
  std::chrono::seconds timeout{};
};

/// Parses "rados:POOL/NAMESPACE?conf=FILE&id=USER&data_pool=POOL&stripe=BYTES"; the timeout comes
/// from CAIRN_RADOS_TIMEOUT (seconds). kInvalidArgument: it is not such an address.
Result<RadosSettings> ParseRadosAddress(std::string_view address);

}  // namespace cairn::kv::internal
