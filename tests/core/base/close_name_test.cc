#include "core/base/close_name.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cairn::core {
namespace {

const std::vector<std::string> kVerbs = {"steps", "keys", "chunks", "show", "diff"};

TEST(FindCloseNameTest, FindsAMissingAnAddedAndAnotherCharacter) {
  EXPECT_EQ(FindCloseName("step", kVerbs), "steps");
  EXPECT_EQ(FindCloseName("stepps", kVerbs), "steps");
  EXPECT_EQ(FindCloseName("chunkz", kVerbs), "chunks");
}

TEST(FindCloseNameTest, CountsTwoExchangedNeighboursAsOneDifference) {
  EXPECT_EQ(FindCloseName("hsow", kVerbs), "show");
  EXPECT_EQ(FindCloseName("kyes", kVerbs), "keys");
}

TEST(FindCloseNameTest, TakesTheClosestName) {
  EXPECT_EQ(FindCloseName("layers.1.wieght",
                          std::vector<std::string>{"layers.0.weight", "layers.1.weight"}),
            "layers.1.weight");
  EXPECT_EQ(FindCloseName("abcdef", std::vector<std::string>{"abcdxx", "abcdex", "abcdey"}),
            "abcdex");
}

TEST(FindCloseNameTest, TakesNoNameThatDiffersInMoreThanAThird) {
  EXPECT_EQ(FindCloseName("frobnicate", kVerbs), std::nullopt);
  EXPECT_EQ(FindCloseName("st", kVerbs), std::nullopt);
  EXPECT_EQ(FindCloseName("", kVerbs), std::nullopt);
  const std::string word(30, 'a');
  EXPECT_EQ(FindCloseName(word, std::vector<std::string>{word.substr(0, 25) + "bbbbb"}),
            std::nullopt);
}

TEST(FindCloseNameTest, DoesNotReturnTheWordItself) {
  EXPECT_EQ(FindCloseName("keys", kVerbs), std::nullopt);
  EXPECT_EQ(FindCloseName("shows", std::vector<std::string>{"shows", "show"}), "show");
}

TEST(FindCloseNameTest, SkipsNamesThatAreTooLongToCompare) {
  const std::string word(300, 'a');
  EXPECT_EQ(FindCloseName(word, std::vector<std::string>{word}), std::nullopt);
  EXPECT_EQ(FindCloseName("show", std::vector<std::string>{word, "", "shows"}), "shows");
}

}  // namespace
}  // namespace cairn::core
