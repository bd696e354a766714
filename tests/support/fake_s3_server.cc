// An S3 server at 127.0.0.1 for tests in other languages and on machines where nothing is
// installed. Prints its endpoint, and serves an empty bucket named "bucket" until its input ends.

#include <cstdio>

#include "tests/support/fake_s3.h"

int main() {
  const cairn::testing::FakeS3 server;
  std::printf("%s\n", server.endpoint().c_str());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}
