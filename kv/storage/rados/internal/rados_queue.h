#pragma once
/// A queue of reads and of parts of uploads, which librados performs.

#include <cstdint>
#include <memory>

#include "kv/base/error.h"
#include "kv/io/io_queue.h"
#include "kv/storage/rados/internal/rados_session.h"

namespace cairn::kv::internal {

/// Ownership: `session` outlives it.
class RadosQueue final : public IoQueue {
 public:
  RadosQueue(RadosSession& session, uint32_t depth);
  ~RadosQueue() override;

  /// kFailedPrecondition: this is a forked child.
  Result<void> Submit(const IoRequest& request) override;
  Result<IoCompletion> Wait() override;
  bool HasCompletion() override;
  const char* name() const override { return "rados"; }

 private:
  struct Completions;

  RadosSession& session_;
  const std::shared_ptr<Completions> completions_;  // shared with the callbacks
};

}  // namespace cairn::kv::internal
