#pragma once
/// The file `environment` that the scripts of servers in tests/support write.

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

namespace cairn::testing {

/// Returns the variables that "export NAME=VALUE" in `directory`/environment sets. Fails the test,
/// with the advice, if there are none.
inline std::map<std::string, std::string> ReadEnvironmentFile(const std::string& directory,
                                                              const char* advice) {
  std::ifstream file(directory + "/environment");
  std::map<std::string, std::string> values;
  for (std::string line; std::getline(file, line);) {
    const size_t equals = line.find('=');
    if (line.starts_with("export ") && equals != std::string::npos) {
      values[line.substr(7, equals - 7)] = line.substr(equals + 1);
    }
  }
  if (values.empty()) ADD_FAILURE() << "there is no server (" << directory << "); " << advice;
  return values;
}

}  // namespace cairn::testing
